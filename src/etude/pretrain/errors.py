"""What can go wrong in a supervised stage, apart from training itself."""

from __future__ import annotations

from etude.training.errors import TrainingError


class PretrainError(TrainingError):
    """A stage cannot run. The message names what is missing or does not fit, and what to do."""
