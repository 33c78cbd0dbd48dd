"""Exceptions of a supervised stage, apart from those of training itself."""

from __future__ import annotations

from etude.training.errors import TrainingError


class PretrainError(TrainingError):
    """A stage cannot run. The message names what is missing or does not fit, and what to do."""
