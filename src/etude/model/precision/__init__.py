"""Low-precision number formats as exact torch references: MXFP8, NVFP4, DeepSeek's block FP8, row-wise FP8.

Blocks lie along the last axis, the one a matmul contracts. docs/precision.md says how zeros, subnormals, infinities and
NaN are converted.
"""

from etude.model.precision.formats import FORMATS, Format, Quantised, dequantise, format_named
from etude.model.precision.fp8 import (
    BlockFP8,
    RowFP8,
    fake_block_fp8,
    fake_row_fp8,
    quantise_block_fp8,
    quantise_row_fp8,
)
from etude.model.precision.layout import STORED, quantise_experts, split_quantised, stored_tensors
from etude.model.precision.mxfp8 import MXFP8, fake_mxfp8, quantise_mxfp8
from etude.model.precision.numerics import Numerics, Operand
from etude.model.precision.nvfp4 import NVFP4, fake_nvfp4, outer_scale, quantise_nvfp4, split_nvfp4

__all__ = [
    "FORMATS",
    "MXFP8",
    "NVFP4",
    "STORED",
    "BlockFP8",
    "Format",
    "Numerics",
    "Operand",
    "Quantised",
    "RowFP8",
    "dequantise",
    "fake_block_fp8",
    "fake_mxfp8",
    "fake_nvfp4",
    "fake_row_fp8",
    "format_named",
    "outer_scale",
    "quantise_block_fp8",
    "quantise_experts",
    "quantise_mxfp8",
    "quantise_nvfp4",
    "quantise_row_fp8",
    "split_nvfp4",
    "split_quantised",
    "stored_tensors",
]
