"""Converts tensors to rows [N, K] for the low-precision formats, and checks that a format accepts them.

Rows lie along the contraction axis, which is the last one; to contract along another axis, transpose first.
"""

from __future__ import annotations

import torch
from torch import Tensor

from etude.model.errors import CannotQuantise

_NUMBERS = (torch.bfloat16, torch.float16, torch.float32)


def rows_of(x: Tensor, block: int, name: str) -> Tensor:
    """Return x as contiguous rows [N, K]. Raises CannotQuantise if the format `name` does not accept x."""
    if x.dtype not in _NUMBERS:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in _NUMBERS)
        raise CannotQuantise(f"{name} quantises {known}; this tensor is {str(x.dtype).removeprefix('torch.')}")
    if x.dim() == 0 or x.shape[-1] == 0:
        raise CannotQuantise(f"{name} needs a contraction axis that is not empty; the shape is {tuple(x.shape)}")
    if x.shape[-1] % block:
        raise CannotQuantise(
            f"{name} has blocks of {block} along the last axis, whose length {x.shape[-1]} is no multiple of that; "
            f"pad it with zeros to {-(-x.shape[-1] // block) * block}"
        )
    return as_rows(x.detach()).contiguous()


def like(x: Tensor, rows: Tensor) -> Tensor:
    """Reshape rows [N, width] that were computed from x, so that they have the leading dimensions of x."""
    return rows.view(*x.shape[:-1], rows.shape[-1])


def as_rows(x: Tensor) -> Tensor:
    """Flatten all dimensions of x but the last, to rows [N, K]."""
    return x.reshape(-1, x.shape[-1])
