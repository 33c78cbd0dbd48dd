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
_PLAIN = {torch.float32, torch.bfloat16, torch.float16, torch.float64}
_SCALES = ("scale", "scales", "scale_inv", "scale_2", "outer")


@dataclass(frozen=True, slots=True)
class Fault:
    where: str
    """A tensor, by its name, or what a layer computes."""
    problem: str

    def __str__(self) -> str:
        return f"{self.where} {self.problem}"


@torch.no_grad()
def faults(tensors: Mapping[str, Tensor]) -> list[Fault]:
    """Every tensor that is not sound."""
    found = ((name, _problem(name, tensors[name])) for name in tensors.keys() - _surely_sound(tensors))
    return sorted((Fault(name, problem) for name, problem in found if problem), key=lambda fault: fault.where)


def require_sound(tensors: Mapping[str, Tensor], refusal: str) -> None:
    """`refusal` is what then does not happen."""
    if found := faults(tensors):
        raise PoisonedWeights(f"{refusal}: {told(found)}")


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


def _surely_sound(tensors: Mapping[str, Tensor]) -> set[str]:
    """Nearly all: those whose numbers are all within the largest there are. A device is waited for once."""
    plain = {name: tensor for name, tensor in tensors.items() if tensor.dtype in _PLAIN and tensor.numel()}
    within = [_within(tensor) for tensor in plain.values()]
    sound = torch.stack(within).tolist() if within else []
    return {name for name, yes in zip(plain, sound, strict=True) if yes}


def _within(tensor: Tensor) -> Tensor:
    low, high = tensor.aminmax()  # NaN if one is; three to ten times as fast as a norm or isfinite on a CPU
    largest = torch.finfo(tensor.dtype).max
    return (low > -largest) & (high < largest)


def _problem(name: str, tensor: Tensor) -> str | None:
    if not tensor.numel():
        return None
    scale = name.endswith(_SCALES)
    if tensor.dtype == torch.float8_e8m0fnu or (tensor.dtype == torch.uint8 and scale):
        powers = tensor.view(torch.uint8)
        if int(powers.max()) <= _LARGEST_E8M0:
            return None
        return f"has {int((powers > _LARGEST_E8M0).sum())} scales that are not finite"
    if tensor.dtype == torch.uint8:
        return _cut(tensor)
    if tensor.dtype == torch.float8_e4m3fn:
        codes = tensor.view(torch.uint8).bitwise_and(_E4M3_INFINITE)
        largest = int(codes.max())
        if largest == _E4M3_INFINITE:
            return _not_finite(int((codes == _E4M3_INFINITE).sum()), tensor)
        return _cut(tensor) if largest == _E4M3_LARGEST and not scale else None
    if tensor.dtype not in _PLAIN:
        return None
    if count := int((~tensor.isfinite()).sum()):
        return _not_finite(count, tensor)
    return _cut(tensor)


def _not_finite(count: int, tensor: Tensor) -> str:
    return f"has {count} of {tensor.numel()} numbers that are not finite"


def _cut(tensor: Tensor) -> str | None:
    share, row = saturated(tensor).max(0)
    if float(share) <= SATURATED:
        return None
    return f"is saturated: in row {int(row)}, {float(share):.0%} of the numbers are the largest there are"
