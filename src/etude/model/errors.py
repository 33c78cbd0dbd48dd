"""What can go wrong at the edges of the network."""

from __future__ import annotations


class ModelError(Exception):
    """A request that the network cannot serve."""


class UnsupportedCheckpoint(ModelError):
    """A checkpoint outside the family that this room implements, or a damaged one."""


class ReplayMismatch(ModelError):
    """Replayed experts that cannot belong to this network."""


class CacheOverrun(ModelError):
    """Tokens that do not fit into the latent cache."""


class CannotQuantise(ModelError):
    """A tensor that a low-precision format does not take, or a layout that no published reader knows."""


class PoisonedWeights(ModelError):
    """Weights that are not finite, or cut off: nobody may go on from them, so they are neither written nor loaded."""


class KernelUnavailable(ModelError):
    """An implementation of a kernel that was asked for by name and cannot serve the format or the device."""
