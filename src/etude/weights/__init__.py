"""Publishes, stores and reads numbered versions of a model's weights.

Versions are stored in full or as lossless deltas, with checksums.
"""

from etude.weights.coordination import Follower
from etude.weights.download import cache_of
from etude.weights.errors import (
    CorruptVersion,
    DoesNotFit,
    Fenced,
    MissingVersion,
    StoreFailed,
    UnknownFormat,
    VersionExists,
    WeightsError,
    WrongBase,
)
from etude.weights.in_memory import HeldTensors, HeldVersion, read_held
from etude.weights.manifest import CHUNK_BYTES, AnyManifest, Entry, Manifest
from etude.weights.store import WeightStore
from etude.weights.tensor import ITEM_SIZES, RawTensor, Tensors

__all__ = [
    "CHUNK_BYTES",
    "ITEM_SIZES",
    "AnyManifest",
    "CorruptVersion",
    "DoesNotFit",
    "Entry",
    "Fenced",
    "Follower",
    "HeldTensors",
    "HeldVersion",
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
    "cache_of",
    "read_held",
]
