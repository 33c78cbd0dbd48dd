"""When two quantised tensors are the same: to the last bit, NaN included."""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor

from etude.model.precision import Quantised


def assert_same(found: Quantised, wanted: Quantised) -> None:
    assert type(found) is type(wanted)
    for field in fields(wanted):
        a, b = getattr(found, field.name), getattr(wanted, field.name)
        if isinstance(b, Tensor):
            assert (a.dtype, a.shape) == (b.dtype, b.shape), field.name
            a, b = (part.contiguous().flatten().view(torch.uint8) for part in (a, b))
        assert torch.equal(a, b) if isinstance(b, Tensor) else a == b, field.name
