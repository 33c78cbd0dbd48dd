"""The low-precision formats by name, each with its functions to quantise and dequantise.

Invariant: `fake` computes the values of `dequantise(quantise(x))` at lower cost; only the sign of a zero may differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from etude.model.errors import CannotQuantise
from etude.model.precision.fp8 import (
    BlockFP8,
    RowFP8,
    dequantise_block_fp8,
    dequantise_row_fp8,
    fake_block_fp8,
    fake_row_fp8,
    quantise_block_fp8,
    quantise_row_fp8,
)
from etude.model.precision.int4 import Int4, dequantise_int4
from etude.model.precision.mxfp8 import MXFP8, dequantise_mxfp8, fake_mxfp8, quantise_mxfp8
from etude.model.precision.nvfp4 import NVFP4, dequantise_nvfp4, fake_nvfp4, quantise_nvfp4

Quantised: TypeAlias = MXFP8 | NVFP4 | BlockFP8 | RowFP8 | Int4


@dataclass(frozen=True, slots=True)
class Format:
    name: str
    quantise: Callable[[Tensor], Quantised]
    fake: Callable[[Tensor], Tensor]
    """Rounds a tensor to values of the format; the dtype stays."""


FORMATS = {
    format.name: format
    for format in (
        Format("mxfp8", quantise_mxfp8, fake_mxfp8),
        Format("nvfp4", quantise_nvfp4, fake_nvfp4),
        Format("nvfp4_tensor", partial(quantise_nvfp4, per="tensor"), partial(fake_nvfp4, per="tensor")),
        Format("fp8_block", quantise_block_fp8, fake_block_fp8),
        Format("fp8_tile", partial(quantise_block_fp8, rows=1), partial(fake_block_fp8, rows=1)),
        Format("fp8_row", quantise_row_fp8, fake_row_fp8),
    )
}
"""The low-precision formats by name. nvfp4 has one outer scale per token, nvfp4_tensor one per tensor. fp8_tile is
block FP8 with blocks of 1 x 128."""


def format_named(name: str) -> Format:
    found = FORMATS.get(name)
    if found is None:
        raise CannotQuantise(f"there is no format {name!r}; the formats are {', '.join(FORMATS)}")
    return found


def split_tensors(q: Quantised) -> tuple[dict[str, Tensor], Callable[..., Quantised]]:
    """Return the plain tensors of a quantised one by name, and a function that rebuilds it from them."""
    parts = {field.name: getattr(q, field.name) for field in fields(q)}
    tensors = {name: part for name, part in parts.items() if isinstance(part, Tensor)}
    return tensors, partial(type(q), **{name: part for name, part in parts.items() if name not in tensors})


def dequantise(q: Quantised, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    match q:
        case MXFP8():
            return dequantise_mxfp8(q, dtype)
        case NVFP4():
            return dequantise_nvfp4(q, dtype)
        case BlockFP8():
            return dequantise_block_fp8(q, dtype)
        case RowFP8():
            return dequantise_row_fp8(q, dtype)
        case Int4():
            return dequantise_int4(q, dtype)
