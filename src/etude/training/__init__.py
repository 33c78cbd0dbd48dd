"""Training code that pretraining and RL share: optimizers, schedules, losses, checkpoints and the step loop.

Each public name is loaded from its file on first use, so that importing this package does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from etude.training.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
    from etude.training.compute import Compute, choose_compute
    from etude.training.errors import CheckpointError, NonFiniteError, TrainingError
    from etude.training.loop import Progress, StageRunner, StepLoss
    from etude.training.losses import draft_agreement, kl_to_teacher, linear_cross_entropy, weighted_cross_entropy
    from etude.training.masters import MasterWeights
    from etude.training.optimizers import Optim, build_optimizer
    from etude.training.schedule import learning_rate

_HOME = {
    "CheckpointError": "errors",
    "Compute": "compute",
    "MasterWeights": "masters",
    "NonFiniteError": "errors",
    "Optim": "optimizers",
    "Progress": "loop",
    "StageRunner": "loop",
    "StepLoss": "loop",
    "TrainingError": "errors",
    "build_optimizer": "optimizers",
    "choose_compute": "compute",
    "draft_agreement": "losses",
    "kl_to_teacher": "losses",
    "latest_checkpoint": "checkpoint",
    "learning_rate": "schedule",
    "linear_cross_entropy": "losses",
    "load_checkpoint": "checkpoint",
    "save_checkpoint": "checkpoint",
    "weighted_cross_entropy": "losses",
}

__all__ = [
    "CheckpointError",
    "Compute",
    "MasterWeights",
    "NonFiniteError",
    "Optim",
    "Progress",
    "StageRunner",
    "StepLoss",
    "TrainingError",
    "build_optimizer",
    "choose_compute",
    "draft_agreement",
    "kl_to_teacher",
    "latest_checkpoint",
    "learning_rate",
    "linear_cross_entropy",
    "load_checkpoint",
    "save_checkpoint",
    "weighted_cross_entropy",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
