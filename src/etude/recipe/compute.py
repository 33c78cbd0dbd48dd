"""Where the arithmetic happens."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from etude.recipe.section import Section


class ComputeRecipe(Section):
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the network computes."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Compute dtype. "auto" takes what a one-second probe finds faster on this machine; masters are fp32 always."""
    threads: int = Field(0, ge=0)
    """Threads of a stage that has the machine to itself; 0 takes every core that this process may use."""


class ClusterRecipe(Section):
    backend: Literal["ray", "inline"] = "ray"
    """"inline" runs every service in the driver's own process: for debugging, it cannot survive a death."""
    nodes: int = Field(1, ge=1)
    """Nodes, the driver's own included; more than one rehearse on this machine what many machines will do."""
    call_seconds: float = Field(120.0, gt=0)
    """Deadline of an ordinary call between services."""
    restarts: int = Field(5, ge=0)
    """How often one service may be restarted within a stage before the stage gives up."""
