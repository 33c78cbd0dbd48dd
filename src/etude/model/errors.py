"""Exceptions of the network's public functions."""

from __future__ import annotations


class ModelError(Exception):
    """Base of these exceptions: the network cannot serve the request."""


class UnsupportedCheckpoint(ModelError):
    """A checkpoint that is damaged, or outside the model family implemented here."""


class ReplayMismatch(ModelError):
    """Replayed experts do not fit this network."""


class CacheOverrun(ModelError):
    """Tokens do not fit into the latent cache."""


class CannotQuantise(ModelError):
    """A low-precision format cannot hold the tensor, or no published reader knows the requested layout."""


class PoisonedWeights(ModelError):
    """Weights that are not finite or were clipped are neither written nor loaded: nothing may go on from them."""


class KernelUnavailable(ModelError):
    """A kernel implementation requested by name cannot serve the format or the device."""
