"""Helpers for launching Triton kernels."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

_WORDS = {torch.bfloat16: torch.int16, torch.float32: torch.int32}


def words(x: Tensor) -> Tensor:
    """View bf16 or fp32 as integers of the same bits."""
    return x.view(_WORDS[x.dtype])


def on_device(x: Tensor) -> AbstractContextManager[object]:
    """Make the device of x current: Triton launches on the current device, which need not be that of x."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
