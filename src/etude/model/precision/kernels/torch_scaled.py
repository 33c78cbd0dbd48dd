"""Grouped matmul of row-wise FP8 with torch's own kernel. Partial sums are added in fp32, as in the Triton kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from etude.model.precision.fp8 import RowFP8


def grouped_mm(a: RowFP8, b: RowFP8, ends_e: Tensor) -> Tensor:
    return torch._scaled_grouped_mm(
        a.codes,
        b.codes.mT,
        a.scales.flatten(),
        b.scales.squeeze(-1),
        offs=ends_e,
        out_dtype=torch.bfloat16,
        use_fast_accum=False,
    )
