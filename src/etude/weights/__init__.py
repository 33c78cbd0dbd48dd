"""Versions of the weights: publishing, storing and following them.

Versions are stored as lossless deltas with checksums.
"""

from etude.weights.errors import (
    CorruptVersion,
    DoesNotFit,
    MissingVersion,
    StoreFailed,
    UnknownFormat,
    VersionExists,
    WeightsError,
    WrongBase,
)
from etude.weights.manifest import Entry, Manifest
from etude.weights.store import WeightStore
from etude.weights.tensor import ITEM_SIZES, RawTensor, Tensors

__all__ = [
    "ITEM_SIZES",
    "CorruptVersion",
    "DoesNotFit",
    "Entry",
    "Manifest",
    "MissingVersion",
    "RawTensor",
    "StoreFailed",
    "Tensors",
    "UnknownFormat",
    "VersionExists",
    "WeightStore",
    "WeightsError",
    "WrongBase",
]
