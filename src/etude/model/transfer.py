"""Copies between the CPU and the network's device. A small copy takes as long as a call, and one to the CPU makes it
wait, so several tensors are copied together. On the CPU nothing is copied."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def to_device(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Copy tensors of one dtype from the CPU to a device, as views of one tensor. The CPU does not wait."""
    if device.type == "cpu":
        return list(tensors)
    sizes = [tensor.numel() for tensor in tensors]
    staged = torch.empty(sum(sizes), dtype=tensors[0].dtype, pin_memory=True)
    torch.cat([tensor.flatten() for tensor in tensors], out=staged)
    there = staged.to(device, non_blocking=True).split(sizes)
    return [part.view(tensor.shape) for part, tensor in zip(there, tensors, strict=True)]


def to_cpu(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copy tensors of any dtypes from one device to the CPU, which waits for all of them at once."""
    if all(tensor.is_cpu for tensor in tensors):
        return list(tensors)
    staged = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
    for here, there in zip(staged, tensors, strict=True):
        here.copy_(there, non_blocking=True)
    torch.cuda.current_stream().synchronize()
    return staged
