"""Helpers for launching Triton kernels."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

_WORDS = {torch.bfloat16: torch.int16, torch.float32: torch.int32}


def words(x: Tensor) -> Tensor:
    """View bf16 or fp32 numbers as integers with the same bits."""
    return x.view(_WORDS[x.dtype])


def on_device(x: Tensor) -> AbstractContextManager[object]:
    """Return a context in which the device of x is current, because Triton launches on the current device."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
