"""torch's own grouped matmul of row-wise FP8. Sums are promoted to fp32 on the way, as in Triton's, unless the fastest
that there is should be had (`use_fast_accum`)."""

from __future__ import annotations

import torch
from torch import Tensor

from etude.model.precision.fp8 import RowFP8


def grouped_mm(a: RowFP8, b: RowFP8, ends_e: Tensor, *, use_fast_accum: bool = False) -> Tensor:
    return torch._scaled_grouped_mm(
        a.codes,
        b.codes.mT,
        a.scales.flatten(),
        b.scales.squeeze(-1),
        offs=ends_e,
        out_dtype=torch.bfloat16,
        use_fast_accum=use_fast_accum,
    )
