"""Reference implementation of the kernels: the same functions in plain torch, with the same rounding.

The quantisers are those of `precision/formats.py`. Matmuls accept operands of any format and sum the exact products in
fp32.
"""

from __future__ import annotations

from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from etude.model.errors import CannotQuantise
from etude.model.placing import Placement
from etude.model.precision.formats import Quantised, dequantise, format_named
from etude.model.precision.nvfp4 import quantise_nvfp4


def quantise(x: Tensor, format: str, *, outer: Tensor | None = None) -> Quantised:
    if outer is None:
        return format_named(format).quantise(x)
    if not format.startswith("nvfp4"):
        raise CannotQuantise(f"{format} has no outer scale; only the nvfp4 formats take `outer`")
    return quantise_nvfp4(x, outer=outer)


def quantise_both(x: Tensor, format: str) -> tuple[Quantised, Quantised]:
    return quantise(x, format), quantise(x.mT, format)


def swiglu_quantise(gate: Tensor, up: Tensor, format: str) -> Quantised:
    return quantise(F.silu(gate) * up, format)


def swiglu_quantise_both(gate: Tensor, up: Tensor, format: str) -> tuple[Quantised, Quantised]:
    return quantise_both(F.silu(gate) * up, format)


def permute(x_nd: Tensor, placement: Placement, gates_nk: Tensor | None = None) -> Tensor:
    rows = F.pad(x_nd, (0, 0, 0, 1))[placement.token_r.long()]  # row -1 is all zeros
    if gates_nk is None:
        return rows
    gates_r = x_nd.new_zeros(len(rows)).scatter(0, placement.row_nk.flatten().long(), gates_nk.flatten().to(x_nd.dtype))
    return (rows.float() * gates_r[:, None].float()).to(x_nd.dtype)


def unpermute(y_rd: Tensor, placement: Placement, gates_nk: Tensor | None = None) -> Tensor:
    choices = y_rd[placement.row_nk.long()].float()
    if gates_nk is not None:
        choices = choices * gates_nk.to(y_rd.dtype).float()[..., None]
    # sum(1) would add in an order of its own.
    return reduce(torch.add, choices.unbind(1)).to(y_rd.dtype)


def gate_gradients(grad_nd: Tensor, y_rd: Tensor, placement: Placement) -> Tensor:
    return (grad_nd[:, None].float() * y_rd[placement.row_nk.long()].float()).sum(-1)


def grouped_mm(a: Tensor | Quantised, b: Tensor | Quantised, ends_e: Tensor) -> Tensor:
    """Multiply rows [R, K] by their expert's weights [E, N, K] to bf16 [R, N]; both operands contract their last axis.

    Expert e has the rows from ends_e[e - 1] (0 for the first expert) to ends_e[e]. Rows after the last expert's are
    zero here; other implementations leave them undefined.
    """
    rows, weights = _values(a), _values(b)
    out = rows.new_zeros(rows.shape[0], weights.shape[1])
    for expert, (start, end) in enumerate(_row_ranges(ends_e)):
        out[start:end] = rows[start:end] @ weights[expert].T
    return out.to(torch.bfloat16)


def grouped_wgrad(a: Tensor | Quantised, b: Tensor | Quantised, ends_e: Tensor) -> Tensor:
    """Multiply `a` [M, R] by the transpose of `b` [N, R] over each expert's rows separately: bf16 [E, M, N], zero for
    an expert without rows."""
    left, right = _values(a), _values(b)
    out = [left[:, start:end] @ right[:, start:end].T for start, end in _row_ranges(ends_e)]
    return torch.stack(out).to(torch.bfloat16)


def _values(x: Tensor | Quantised) -> Tensor:
    return x.float() if isinstance(x, Tensor) else dequantise(x, torch.float32)


def _row_ranges(ends_e: Tensor) -> list[tuple[int, int]]:
    ends = ends_e.tolist()
    return list(zip([0, *ends[:-1]], ends, strict=True))
