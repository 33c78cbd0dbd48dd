"""Sealing: an agent's box holds no history, no caches and no copies of the solution; and the proof that it does not.

What is removed is in leftovers.toml with its reasons; `scan` looks for the reference's lines in all that is left."""

from __future__ import annotations

from etude.tasks.seal.leftovers import Removed, is_leftover
from etude.tasks.seal.needles import Needle, Needles, needles_of
from etude.tasks.seal.scan import Finding, SealReport, scan_files, scan_image
from etude.tasks.seal.sealing import Sealed, seal

__all__ = [
    "Finding",
    "Needle",
    "Needles",
    "Removed",
    "SealReport",
    "Sealed",
    "is_leftover",
    "needles_of",
    "scan_files",
    "scan_image",
    "seal",
]
