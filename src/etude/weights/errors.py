"""What can go wrong with a version of the weights. None of these ever comes with a tensor."""

from __future__ import annotations


class WeightsError(Exception):
    """A failure of the weights room."""


class CorruptVersion(WeightsError):
    """Bytes in the store are not the ones that were published; the message names version and tensor."""


class MissingVersion(WeightsError):
    """There is no manifest for this version, or for one that it stands on."""


class WrongBase(WeightsError):
    """The tensors that the caller calls version N are not those of version N (often: changed in place since)."""


class VersionExists(WeightsError):
    """This version is already published with other content. A published version never changes."""


class UnknownFormat(WeightsError):
    """The manifest was written by a newer program."""


class StoreFailed(WeightsError):
    """The object store refused or could not be reached: disk full, permission, network."""


class DoesNotFit(WeightsError):
    """The tensors are not those of this module: names, shapes, or a dtype that would lose precision."""
