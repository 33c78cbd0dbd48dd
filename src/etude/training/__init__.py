"""Training code that pretraining and RL share: optimizers, schedules, checkpoints and the step loop."""

from etude.training.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from etude.training.compute import Compute, choose_compute
from etude.training.errors import CheckpointError, NonFiniteError, OutOfMemory, TrainingError
from etude.training.loop import Progress, StageRunner, StepLoss, back_propagate
from etude.training.masters import MasterWeights
from etude.training.memory import TrainerMemory, free_memory, told_when_short
from etude.training.optimizers import Optim, build_optimizer
from etude.training.schedule import learning_rate

__all__ = [
    "CheckpointError",
    "Compute",
    "MasterWeights",
    "NonFiniteError",
    "Optim",
    "OutOfMemory",
    "Progress",
    "StageRunner",
    "StepLoss",
    "TrainerMemory",
    "TrainingError",
    "back_propagate",
    "build_optimizer",
    "choose_compute",
    "free_memory",
    "latest_checkpoint",
    "learning_rate",
    "load_checkpoint",
    "save_checkpoint",
    "told_when_short",
]
