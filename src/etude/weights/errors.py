"""Exceptions of the version store. `read` raises one instead of returning tensors that are not the published ones."""

from __future__ import annotations


class WeightsError(Exception):
    """Base class of the exceptions of this package."""


class CorruptVersion(WeightsError):
    """Stored bytes are not those that were published. The message names the version and, if known, the tensor."""


class MissingVersion(WeightsError):
    """The requested version, or a version that its deltas build on, has no manifest in the store."""


class WrongBase(WeightsError):
    """The base that the caller gave, a version's number and tensors, cannot be used: the tensors are not those
    published under the number (often because they were changed in place), or the version is not an earlier one."""


class Fenced(WeightsError):
    """Another publisher took the store over, so this one may not publish any more."""


class VersionExists(WeightsError):
    """The version number is already published with other content. A published version never changes."""


class UnknownFormat(WeightsError):
    """A manifest has a format that this program does not read, probably that of a newer program."""


class StoreFailed(WeightsError):
    """The object store refused the operation or could not be reached: disk full, permission, network."""


class DoesNotFit(WeightsError):
    """Tensors do not match the module they are copied into: names, shapes, or a dtype that would lose precision."""
