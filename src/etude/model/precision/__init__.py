"""Low-precision number formats as exact torch references: MXFP8, NVFP4, DeepSeek's block FP8, row-wise FP8.

Blocks lie along the last axis, the one a matmul contracts. docs/precision.md says how zeros, subnormals, infinities and
NaN are converted.
"""

from etude.model.precision.formats import FORMATS, Quantised, dequantise, format_named
from etude.model.precision.fp8 import BlockFP8, RowFP8, quantise_block_fp8, quantise_row_fp8
from etude.model.precision.layout import STORED, split_quantised, stored_tensors
from etude.model.precision.mxfp8 import MXFP8, quantise_mxfp8
from etude.model.precision.numerics import Numerics
from etude.model.precision.nvfp4 import NVFP4, fake_nvfp4, outer_scale, quantise_nvfp4

__all__ = [
    "FORMATS",
    "MXFP8",
    "NVFP4",
    "STORED",
    "BlockFP8",
    "Numerics",
    "Quantised",
    "RowFP8",
    "dequantise",
    "fake_nvfp4",
    "format_named",
    "outer_scale",
    "quantise_block_fp8",
    "quantise_mxfp8",
    "quantise_nvfp4",
    "quantise_row_fp8",
    "split_quantised",
    "stored_tensors",
]
