"""Exceptions that the public functions of this package raise."""

from __future__ import annotations


class ModelError(Exception):
    """Base class of this package's exceptions."""


class UnsupportedCheckpoint(ModelError):
    """A checkpoint that is damaged, or outside the families and settings implemented here."""


class ReplayMismatch(ModelError):
    """The recorded expert choices to replay do not match this network's layers, experts or tokens."""


class CacheOverrun(ModelError):
    """A step has a token at a position beyond the context length of the cache."""


class CannotQuantise(ModelError):
    """A tensor cannot be quantised to the requested format, or no published reader knows the requested layout."""


class PoisonedWeights(ModelError):
    """Raised instead of saving, loading or publishing weights that have numbers which are not finite, or rows that were
    clipped to the largest value of their type."""


class KernelUnavailable(ModelError):
    """A kernel implementation requested by name cannot serve the format or the device."""
