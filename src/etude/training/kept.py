"""Numbers that an optimizer keeps for every parameter, as fp32 or in blocks of 8 bits, on the device or on the CPU.

An update takes them as fp32 tensors on the device and puts them back. fp32 numbers on the device are taken as they are
stored, so nothing is copied.

In 8 bits, a block of `BLOCK` numbers has one fp32 scale, its largest magnitude. A code c stands for (c / most) ** power
times the scale, so that numbers much smaller than the largest one keep their sign and size: the power is 2 for signed
numbers, and 4 for squares of such. A square is never rounded to 0, since an update divides by its root.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 256
"""Numbers per scale."""
AT_ONCE = 1 << 26
"""Maximum number of numbers that are updated at once where their states are copied first: 256 MB for each state."""


class Kept(Protocol):
    def __contains__(self, name: str) -> bool: ...

    def take(self, name: str, device: torch.device) -> Tensor:
        """Return a parameter's numbers as fp32 on the device."""

    def put(self, name: str, numbers: Tensor) -> None:
        """Store a parameter's numbers, whose tensor `take` may have returned."""

    def state_dict(self) -> dict[str, Any]: ...

    def load(self, state: Mapping[str, Any], shapes: Mapping[str, torch.Size], device: torch.device) -> None:
        """Restore what `state_dict` returned."""


class FullNumbers:
    """fp32 numbers, on the CPU if they are `away`."""

    def __init__(self, *, away: bool = False) -> None:
        self._away = away
        self._tensors: dict[str, Tensor] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def take(self, name: str, device: torch.device) -> Tensor:
        return self._tensors[name].to(device, non_blocking=True)

    def put(self, name: str, numbers: Tensor) -> None:
        held = self._tensors.get(name)
        if held is numbers:
            return
        if not self._away:
            self._tensors[name] = numbers
            return
        if held is None:
            held = self._tensors[name] = emptied(numbers)
        held.copy_(numbers, non_blocking=True)

    def state_dict(self) -> dict[str, Any]:
        settle(self._away)
        return dict(self._tensors)

    def load(self, state: Mapping[str, Any], shapes: Mapping[str, torch.Size], device: torch.device) -> None:
        # Into fresh storage with the usual alignment: kernels may round differently on other alignments.
        for name, tensor in state.items():
            place = torch.empty(shapes[name], device=device)
            self._tensors[name] = (emptied(place) if self._away else place).copy_(tensor)


@dataclass(frozen=True, slots=True)
class Blocks:
    codes: Tensor
    """uint8, or int8 for signed numbers; of the numbers' shape."""
    scales: Tensor
    """fp32: the largest magnitude of each block of the flattened numbers."""


class BlockNumbers:
    """Numbers in blocks of 8 bits, on the CPU if they are `away`."""

    def __init__(self, *, signed: bool, away: bool = False) -> None:
        self._signed, self._away = signed, away
        self._blocks: dict[str, Blocks] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._blocks

    def take(self, name: str, device: torch.device) -> Tensor:
        held = self._blocks[name]
        return from_blocks(Blocks(*(part.to(device, non_blocking=True) for part in (held.codes, held.scales))))

    def put(self, name: str, numbers: Tensor) -> None:
        fresh = to_blocks(numbers, signed=self._signed)
        if self._away:
            held = self._blocks.get(name) or Blocks(emptied(fresh.codes), emptied(fresh.scales))
            held.codes.copy_(fresh.codes, non_blocking=True)
            held.scales.copy_(fresh.scales, non_blocking=True)
            fresh = held
        self._blocks[name] = fresh

    def state_dict(self) -> dict[str, Any]:
        settle(self._away)
        return {name: {"codes": held.codes, "scales": held.scales} for name, held in self._blocks.items()}

    def load(self, state: Mapping[str, Any], shapes: Mapping[str, torch.Size], device: torch.device) -> None:
        home = torch.device("cpu") if self._away else device
        for name, parts in state.items():
            self._blocks[name] = Blocks(
                *(torch.empty_like(parts[key], device=home).copy_(parts[key]) for key in _PARTS)
            )


_PARTS = ("codes", "scales")


def to_blocks(numbers: Tensor, *, signed: bool) -> Blocks:
    flat = F.pad(numbers.flatten(), (0, -numbers.numel() % BLOCK)).view(-1, BLOCK)
    scales = flat.abs().amax(1)
    share = flat / scales.clamp_min(torch.finfo(torch.float32).tiny)[:, None]
    if signed:
        codes = (share.abs().sqrt_().mul_(_MOST_SIGNED).round_() * share.sign()).to(torch.int8)
    else:
        codes = share.sqrt_().sqrt_().mul_(_MOST).round_().clamp_(min=1).to(torch.uint8)
    return Blocks(codes.flatten()[: numbers.numel()].view(numbers.shape), scales)


def from_blocks(blocks: Blocks) -> Tensor:
    codes, missing = blocks.codes.flatten(), -blocks.codes.numel() % BLOCK
    wide = F.pad(codes, (0, missing)).view(-1, BLOCK).to(torch.float32)
    if blocks.codes.dtype == torch.int8:
        wide = wide.div_(_MOST_SIGNED).mul_(wide.abs())
    else:
        wide = wide.div_(_MOST).square_().square_()
    return wide.mul_(blocks.scales[:, None]).flatten()[: codes.numel()].view(blocks.codes.shape)


_MOST_SIGNED, _MOST = 127.0, 255.0


def emptied(like: Tensor) -> Tensor:
    """Return an empty tensor of the same shape on the CPU, in memory that a GPU copies from and to by itself."""
    return torch.empty(like.shape, dtype=like.dtype, pin_memory=like.is_cuda)


def settle(away: bool) -> None:
    """Wait until all copies from a GPU to the CPU have arrived, where numbers are kept `away`."""
    if away and torch.cuda.is_available():
        torch.cuda.synchronize()


def groups_of(names: Sequence[str], sizes: Mapping[str, int], most: int | None) -> list[list[str]]:
    """Divide names into groups of at most `most` numbers together, or of one parameter; None gives one group."""
    groups: list[list[str]] = [[]]
    total = 0
    for name in names:
        if groups[-1] and most is not None and total + sizes[name] > most:
            groups.append([])
            total = 0
        groups[-1].append(name)
        total += sizes[name]
    return groups if names else []
