"""Recipe sections for hardware: device and dtype, and the cluster of services."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from etude.recipe.section import Section


class ComputeRecipe(Section):
    device: Literal["cpu", "cuda"] = "cpu"
    """Device of training and inference."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Compute dtype. "auto" takes the one that a one-second probe finds faster on this machine. Master weights are
    always fp32."""
    threads: int = Field(0, ge=0)
    """CPU threads of a stage that runs alone; 0 means every core that this process may use."""


class ClusterRecipe(Section):
    backend: Literal["processes", "ray", "inline"] = "processes"
    """"processes" runs each service in a process of its own on this machine, "ray" in a ray actor. "inline" runs all of
    them in the driver's process: for debugging, since no service can be restarted after a crash."""
    nodes: int = Field(1, ge=1)
    """Nodes, including the driver's. With more than one, this machine simulates a cluster of many."""
    call_seconds: float = Field(120.0, gt=0)
    """Deadline of an ordinary call between services, in seconds."""
    restarts: int = Field(5, ge=0)
    """How often one service may be restarted within a stage before the stage fails."""
