"""Sources of tasks by category, a file each: what is drawn, from what, and how it is graded.

Equal (name, version, seed, split, index) make equal tasks; a task's split is that of the library it is made from."""

from __future__ import annotations

from etude.tasks.categories.base import CategorySource, Draft

__all__ = ["CategorySource", "Draft"]
