"""Recipe sections for hardware: device and dtype, and the cluster of services."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from etude.recipe.section import Section


class ComputeRecipe(Section):
    LATER: ClassVar[frozenset[str]] = frozenset({"checkpoint_activations", "compile", "deterministic", "offload"})
    FITTING: ClassVar[frozenset[str]] = frozenset({"checkpoint_activations", "offload"})

    device: Literal["cpu", "cuda"] = "cpu"
    """Device of training and inference."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Compute dtype. "auto" is bfloat16 on CUDA; on a CPU, a one-second probe chooses the faster one. Master weights
    are always fp32."""
    offload: Literal["none", "moments", "masters"] = "none"
    """What a GPU leaves in the CPU's memory between steps: nothing, the optimizer's moments (4 to 8 bytes per
    parameter), or these and the fp32 master weights (4 more). Each step copies them to the GPU and back, at some tens
    of GB/s each way. It does not change the result."""
    compile: bool = False
    """Whether norms, rotary positions and dense feed-forwards are compiled for training on a GPU. Steps are faster, the
    first ones take up to a minute, and results differ in their last bits."""
    deterministic: bool = False
    """Whether a GPU computes the same bits each time, as CPUs always do. It is slower there; `rl.mode = "sync"` needs
    it."""
    threads: int = Field(0, ge=0)
    """Number of CPU threads of a stage that runs alone; 0 means one per core that this process may use."""
    checkpoint_activations: Literal["none", "blocks", "auto"] = "auto"
    """Activation checkpointing in training: "blocks" keeps only the input of each layer (block), whose activations the
    backward pass computes again. That takes about a third more time (on a CPU two thirds, since memory is given back
    too), much less memory, and changes no bit of a result. "auto" does so where all activations together would take
    more than half of the free memory."""


class ClusterRecipe(Section):
    backend: Literal["processes", "ray", "inline"] = "processes"
    """How services run: "processes" starts a process on this machine for each, "ray" a ray actor. "inline" runs all of
    them in the driver's process: for debugging, since no service can be restarted after a crash."""
    nodes: int = Field(1, ge=1)
    """Number of cluster nodes, including the driver's. More than 1 simulates that many nodes on this machine."""
    call_seconds: float = Field(120.0, gt=0)
    """Deadline of a short call between services, such as a status, in seconds."""
    start_seconds: float = Field(300.0, gt=0)
    """Deadline of a service's start, in which it loads its model, in seconds."""
    generate_seconds: float = Field(600.0, gt=0)
    """Deadline of one answer of the engine, its restarts included, in seconds."""
    train_seconds: float = Field(3600.0, gt=0)
    """Deadline of one RL step, of `log_every` steps of a supervised stage, and of one round of continued SFT, in
    seconds."""
    weights_seconds: float = Field(600.0, gt=0)
    """Deadline of publishing, loading or exporting a version of the weights, in seconds."""
    restarts: int = Field(5, ge=0)
    """Maximum number of restarts of one service within a stage; the next crash fails the stage."""
