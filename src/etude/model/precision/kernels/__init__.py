"""Kernels for what dominates a layer of experts, each beside the plain torch that it is held against.

`choose` takes the implementation that is named and no other; Triton is imported when one of its kernels is chosen."""

from etude.model.precision.kernels.choice import IMPLEMENTATIONS, Choice, Implementation, choose, overview, refusal
from etude.model.precision.kernels.placement import Placement, place

__all__ = ["IMPLEMENTATIONS", "Choice", "Implementation", "Placement", "choose", "overview", "place", "refusal"]
