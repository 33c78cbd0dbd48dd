"""Exceptions of the training package."""

from __future__ import annotations


class TrainingError(Exception):
    """Training cannot continue. The message says what was expected, what was found and what to do."""


class NonFiniteError(TrainingError):
    """A loss or gradient is not finite, and the weights were not updated; or a training state is not finite, and no
    checkpoint was written."""


class CheckpointError(TrainingError):
    """A checkpoint or another file of a stage cannot be written or used. The message names it and the reason."""


class OutOfMemory(TrainingError):
    """The machine or the device ran out of memory. The message says what needed how much and which field to change.
    What was saved before is complete."""
