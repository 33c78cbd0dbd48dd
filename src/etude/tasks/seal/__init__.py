"""Sealing: removes history, caches and copies of the solution from an agent's image, and checks that none is left.

leftovers.toml lists what is removed, with reasons. `scan` searches all remaining files for lines of the reference
solution and of the hidden tests.
"""

from __future__ import annotations

from etude.tasks.seal.leak_patterns import Needles, needles_of
from etude.tasks.seal.leftovers import Removed, is_leftover
from etude.tasks.seal.scan import Finding, SealReport, scan_files, scan_image
from etude.tasks.seal.sealing import Sealed, seal

__all__ = [
    "Finding",
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
