"""Exceptions of training, apart from errors in the data."""

from __future__ import annotations


class TrainingError(Exception):
    """Training cannot continue. The message says what was expected, what was found and what to do."""


class NonFiniteError(TrainingError):
    """A loss, gradient or training state is not finite. The weights were not updated by it, or no checkpoint was
    written."""


class CheckpointError(TrainingError):
    """A checkpoint cannot be written or read. The message names the folder and the reason."""
