"""Exceptions of the version store. An operation that raises one never returns a tensor."""

from __future__ import annotations


class WeightsError(Exception):
    """Base of the exceptions of this package."""


class CorruptVersion(WeightsError):
    """Bytes in the store are not the ones that were published. The message names version and tensor."""


class MissingVersion(WeightsError):
    """There is no manifest for this version, or for a version it is a delta on."""


class WrongBase(WeightsError):
    """The tensors the caller gives as version N are not those of version N (often because they were changed in
    place)."""


class VersionExists(WeightsError):
    """This version is already published with other content. A published version never changes."""


class UnknownFormat(WeightsError):
    """The manifest was written by a newer program."""


class StoreFailed(WeightsError):
    """The object store refused the operation or could not be reached: disk full, permission, network."""


class DoesNotFit(WeightsError):
    """The tensors do not match this module: names, shapes, or a dtype that would lose precision."""
