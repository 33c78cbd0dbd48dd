"""The kernels written in Triton, tested against `kernels.reference`. Importing this package imports Triton."""

from etude.model.precision.kernels.in_triton.grouped import grouped_mm, grouped_wgrad
from etude.model.precision.kernels.in_triton.permute import gate_gradients, permute, unpermute
from etude.model.precision.kernels.in_triton.quantise import (
    quantise,
    quantise_both,
    swiglu_quantise,
    swiglu_quantise_both,
)

__all__ = [
    "gate_gradients",
    "grouped_mm",
    "grouped_wgrad",
    "permute",
    "quantise",
    "quantise_both",
    "swiglu_quantise",
    "swiglu_quantise_both",
    "unpermute",
]
