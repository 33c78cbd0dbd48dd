"""The exception of the supervised stages. The exceptions of training itself are in etude.training.errors."""

from __future__ import annotations

from etude.training.errors import TrainingError


class PretrainError(TrainingError):
    """A supervised stage cannot run. The message says what is missing or does not fit, and what to do."""
