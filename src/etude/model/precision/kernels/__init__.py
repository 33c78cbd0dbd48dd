"""Kernels for the expensive parts of a layer of experts, each with a plain torch reference that it is tested against.

`choose` returns exactly the implementation that is named; Triton is imported only when one of its kernels is chosen.
`who_computes` and `kernels_for` choose what a recipe asks for, and `experts_by_kernels` is the layer.
"""

from etude.model.precision.kernels.choice import IMPLEMENTATIONS, choose, overview, refusal
from etude.model.precision.kernels.experts import ExpertKernels, kernels_for, who_computes
from etude.model.precision.kernels.layer import experts_by_kernels

__all__ = [
    "IMPLEMENTATIONS",
    "ExpertKernels",
    "choose",
    "experts_by_kernels",
    "kernels_for",
    "overview",
    "refusal",
    "who_computes",
]
