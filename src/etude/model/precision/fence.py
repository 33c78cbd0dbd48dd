"""What may not be in a checkpoint or a version: numbers that are not finite, and rows that were cut off.

Invariant: what is looked at is what is written, under its name there: numbers, or codes and scales of any format. A
scale is told by its name, which no code's ends like.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from etude.model.errors import PoisonedWeights

SATURATED = 0.5
"""Share of a row's numbers, above which they may not all be as large as its format goes: its scale is too small. Rows
that these formats' own quantisers make have an eighth or so in E2M1, and one number in E4M3."""
_LARGEST_E8M0 = 246
"""2^119: times 448, any larger power is infinite in fp32. 255 is NaN."""
_E4M3_INFINITE, _E4M3_LARGEST, _E2M1_LARGEST = 0x7F, 0x7E, 7
_SCALES = ("scale", "scales", "scale_inv", "scale_2", "outer")


@dataclass(frozen=True, slots=True)
class Fault:
    where: str
    """A tensor, by its name, or what a layer computes."""
    problem: str

    def __str__(self) -> str:
        return f"{self.where} {self.problem}"


def faults(tensors: Mapping[str, Tensor]) -> list[Fault]:
    """Every tensor that is not sound. One pass over memory, and a second over codes."""
    found = ((name, _problem(name, tensor.detach())) for name, tensor in tensors.items() if tensor.numel())
    return [Fault(name, problem) for name, problem in found if problem]


def require_sound(tensors: Mapping[str, Tensor], what: str) -> None:
    """Refuses before anything of it is written."""
    if found := faults(tensors):
        raise PoisonedWeights(f"{what} was not written: {told(found)}")


def told(found: Sequence[Fault]) -> str:
    return f"{found[0]}{f', and {len(found) - 1} more' if len(found) > 1 else ''}"


def saturated(tensor: Tensor) -> Tensor:
    """Of each row, the share of numbers that are as large as their format goes: of E4M3, of E2M1 (two to a byte), or of
    a float type."""
    rows = tensor.flatten(0, -2) if tensor.dim() > 1 else tensor.reshape(1, -1)
    if tensor.dtype == torch.float8_e4m3fn:
        full = rows.view(torch.uint8).bitwise_and(_E4M3_INFINITE) == _E4M3_LARGEST
    elif tensor.dtype == torch.uint8:
        full = torch.cat((rows & _E2M1_LARGEST, rows >> 4 & _E2M1_LARGEST), -1) == _E2M1_LARGEST
    else:
        full = rows.abs() == torch.finfo(tensor.dtype).max
    return full.float().mean(-1)


def _problem(name: str, tensor: Tensor) -> str | None:
    scale = name.endswith(_SCALES)
    if tensor.dtype == torch.float8_e8m0fnu or (tensor.dtype == torch.uint8 and scale):
        beyond = tensor.view(torch.uint8) > _LARGEST_E8M0
        return f"has {int(beyond.sum())} scales that are not finite" if beyond.any() else None
    if tensor.dtype == torch.uint8:
        return _cut(tensor)
    if tensor.dtype == torch.float8_e4m3fn:
        codes = tensor.view(torch.uint8).bitwise_and(_E4M3_INFINITE)
        largest = int(codes.max())
        if largest == _E4M3_INFINITE:
            return _not_finite(int((codes == _E4M3_INFINITE).sum()), tensor)
        return _cut(tensor) if largest == _E4M3_LARGEST and not scale else None
    if not tensor.is_floating_point():
        return None
    low, high = tensor.aminmax()
    largest = max(-float(low), float(high))
    if not bool(low.isfinite() & high.isfinite()):
        return _not_finite(int((~tensor.isfinite()).sum()), tensor)
    return _cut(tensor) if largest == torch.finfo(tensor.dtype).max else None


def _not_finite(count: int, tensor: Tensor) -> str:
    return f"has {count} of {tensor.numel()} numbers that are not finite"


def _cut(tensor: Tensor) -> str | None:
    share, row = saturated(tensor).max(0)
    if float(share) <= SATURATED:
        return None
    return f"is saturated: in row {int(row)}, {float(share):.0%} of the numbers are the largest there are"
