"""Versions of the weights.

Lossless deltas with checksums, a store, publish and follow."""

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
