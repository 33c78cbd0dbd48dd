"""Task sources by category, one file each: which tasks are drawn, from which library or package, and how they are
graded.

Equal (name, version, seed, split, index) make equal tasks. A task is in the split of the library that it is made from.
"""

from __future__ import annotations

from etude.tasks.categories.base import CategorySource, Draft

__all__ = ["CategorySource", "Draft"]
