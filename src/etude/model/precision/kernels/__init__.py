"""Kernels for a layer of routed experts. Each is tested against a reference in plain torch.

`choose` returns the named implementation of one operation; Triton is imported only when one of its kernels is chosen.
`implementation_for` and `kernels_for` choose the implementation and kernels of a recipe; `experts_by_kernels` computes
the layer with them.
"""

from etude.model.precision.kernels.choice import IMPLEMENTATIONS, choose, overview, refusal
from etude.model.precision.kernels.experts import ExpertKernels, implementation_for, kernels_for
from etude.model.precision.kernels.layer import experts_by_kernels

__all__ = [
    "IMPLEMENTATIONS",
    "ExpertKernels",
    "choose",
    "experts_by_kernels",
    "implementation_for",
    "kernels_for",
    "overview",
    "refusal",
]
