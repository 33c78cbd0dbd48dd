"""Checks weights before they are written to a checkpoint, or after they are read.

A fault is a tensor with numbers that are not finite, with codes or scales that stand for such numbers, or with clipped
rows: rows in which a cast set many numbers to the dtype's largest value. A fault makes writing and loading the
checkpoint fail.

Invariant: the checked tensors are exactly the stored ones, with their stored names. They hold numbers, or the codes or
scales of any format. Names with certain endings are those of scales; no tensor of codes has such a name.

Many codes at the largest value do not prove clipping: a row whose numbers all have one magnitude has only such codes.
Such rows are reported as `doubts` and never make anything fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from etude.model.errors import PoisonedWeights
from etude.model.precision.formats import Quantised
from etude.model.precision.int4 import Int4, codes_of_int4
from etude.model.precision.nvfp4 import NVFP4

SATURATED = 0.5
"""A row counts as clipped if more than this share of its numbers have their type's largest magnitude. In ordinary
weights about an eighth of the E2M1 codes have it, and a single E4M3 code."""
_LARGEST_E8M0 = 246
"""Largest acceptable scale, as E8M0 code: 2^119. Any larger power times 448 is infinite in fp32; code 255 is NaN."""
_E4M3_INFINITE, _E4M3_LARGEST, _E2M1_LARGEST, _LARGEST_INT4 = 0x7F, 0x7E, 7, 7
PLAIN = {torch.float32, torch.bfloat16, torch.float16, torch.float64}
"""Dtypes of tensors that are not quantised."""
_SCALES = ("scale", "scales", "scale_inv", "scale_2", "outer")
_DIVISOR = ".weight_global_scale"
"""Name suffix of weight scales that are divisors. Scales of activations, which loading ignores, have other names."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One tensor with numbers that are not finite, or with rows that were or may have been clipped."""

    where: str
    """Name of the tensor, or description of a layer's intermediate result."""
    problem: str
    """What is wrong, as the rest of a sentence that begins with `where`: "has 3 of 8 numbers that are not finite"."""

    def __str__(self) -> str:
        return f"{self.where} {self.problem}"


@torch.no_grad()
def faults(tensors: Mapping[str, Tensor]) -> list[Fault]:
    """Return a `Fault` for every stored tensor that is not finite or was clipped, sorted by name."""
    suspects = tensors.keys() - _within_range(tensors) | {name for name in tensors if name.endswith(_DIVISOR)}
    found = ((name, _problem(name, tensors[name])) for name in suspects)
    return sorted((Fault(name, problem) for name, problem in found if problem), key=lambda fault: fault.where)


@torch.no_grad()
def faults_of_values(values: Iterable[tuple[str, Tensor]]) -> list[Fault]:
    """Return a `Fault` for each dequantised weight that is not finite. `values` may dequantise each one on demand, as
    they are checked one after another."""
    counted = ((name, int((~x.isfinite()).sum()), x) for name, x in values)
    return [
        Fault(name, f"stands for {count} of {x.numel()} numbers that are not finite in {_dtype(x)}")
        for name, count, x in counted
        if count
    ]


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


@torch.no_grad()
def doubts(quantised: Mapping[str, Quantised]) -> list[Fault]:
    """Return a `Fault` for every weight that may have been clipped, for example by a scale that was too small: most
    codes of some rows (in NVFP4 also their blocks' scales) are at the maximum."""
    found = []
    for name, q in sorted(quantised.items()):
        full = codes_of_int4(q).abs() >= _LARGEST_INT4 if isinstance(q, Int4) else _full(q.codes)
        if isinstance(q, NVFP4):
            largest = q.scales.view(torch.uint8) == _E4M3_LARGEST
            full &= largest.repeat_interleave(full.shape[-1] // largest.shape[-1], -1)
        rows = int((full.flatten(0, -2).float().mean(-1) > SATURATED).sum()) if full.numel() else 0
        if rows:
            found.append(Fault(name, f"has {rows} rows of which most codes are the largest there are"))
    return found


def require_no_faults(tensors: Mapping[str, Tensor], refusal: str) -> None:
    """Raise PoisonedWeights if a tensor is not finite or was clipped. `refusal` begins the message."""
    refuse_faults(faults(tensors), refusal)


def refuse_faults(found: Sequence[Fault], refusal: str) -> None:
    if found:
        raise PoisonedWeights(f"{refusal}: {summary(found)}")


def summary(found: Sequence[Fault]) -> str:
    return f"{found[0]}{f', and {len(found) - 1} more' if len(found) > 1 else ''}"


def _within_range(tensors: Mapping[str, Tensor]) -> set[str]:
    """Return the names of those tensors of a plain dtype that hold no NaN, no infinity and not the dtype's maximum:
    usually all of them. The device is synchronised once, for all tensors together."""
    plain = {name: tensor for name, tensor in tensors.items() if tensor.dtype in PLAIN and tensor.numel()}
    within = [_within(tensor) for tensor in plain.values()]
    sound = torch.stack(within).tolist() if within else []
    return {name for name, yes in zip(plain, sound, strict=True) if yes}


def _within(tensor: Tensor) -> Tensor:
    low, high = tensor.aminmax()  # NaN if any number is NaN; on a CPU 3 to 10 times as fast as a norm or isfinite
    largest = torch.finfo(tensor.dtype).max
    return (low > -largest) & (high < largest)


def _problem(name: str, tensor: Tensor) -> str | None:
    """Return what is wrong with a stored tensor, as `Fault.problem` words it; None if nothing is."""
    if not tensor.numel():
        return None
    scale = name.endswith(_SCALES)
    if tensor.dtype == torch.float8_e8m0fnu or (tensor.dtype == torch.uint8 and scale):
        powers = tensor.view(torch.uint8)
        if int(powers.max()) <= _LARGEST_E8M0:
            return None
        return f"has {int((powers > _LARGEST_E8M0).sum())} scales that are not finite"
    if tensor.dtype == torch.float8_e4m3fn:
        count = int((tensor.view(torch.uint8).bitwise_and(_E4M3_INFINITE) == _E4M3_INFINITE).sum())
        return _not_finite(count, tensor) if count else None
    if tensor.dtype not in PLAIN:
        return None
    if count := int((~tensor.isfinite()).sum()):
        return _not_finite(count, tensor)
    if name.endswith(_DIVISOR) and (count := int((~tensor.float().reciprocal().isfinite()).sum())):
        return f"has {count} of {tensor.numel()} divisors that are zero, or as good as zero"
    return _clipped(tensor)


def _not_finite(count: int, tensor: Tensor) -> str:
    return f"has {count} of {tensor.numel()} numbers that are not finite"


def _full(codes: Tensor) -> Tensor:
    """Return for each code (E4M3, or E2M1 packed two per byte) whether it has the largest magnitude of its type."""
    if codes.dtype == torch.float8_e4m3fn:
        return codes.view(torch.uint8).bitwise_and(_E4M3_INFINITE) == _E4M3_LARGEST
    return torch.stack((codes & _E2M1_LARGEST, codes >> 4 & _E2M1_LARGEST), -1).flatten(-2) == _E2M1_LARGEST


def _clipped(tensor: Tensor) -> str | None:
    """Describe a row of plain numbers that a saturating cast clipped; None if there is none."""
    rows = tensor.flatten(0, -2) if tensor.dim() > 1 else tensor.reshape(1, -1)
    share, row = (rows.abs() == torch.finfo(tensor.dtype).max).float().mean(-1).max(0)
    if float(share) <= SATURATED:
        return None
    return f"is saturated: in row {int(row)}, {float(share):.0%} of the numbers are the largest there are"
