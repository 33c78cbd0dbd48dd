"""What can go wrong in training, apart from the data."""

from __future__ import annotations


class TrainingError(Exception):
    """Training cannot go on: says what was expected, what was found and what to do."""


class NonFiniteError(TrainingError):
    """A loss or gradient is not a finite number, and the weights were not touched by it; or the state of a training is
    not, and no checkpoint of it was written."""


class CheckpointError(TrainingError):
    """A checkpoint cannot be written or read; names the folder and the reason."""
