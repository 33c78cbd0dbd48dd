"""Overlap: finds content that two collections of tasks, documents or traces share.

A held-out task is valid only if no training data contains a piece of it.
"""

from etude.tasks.overlap.finding import Leak, find_leaks
from etude.tasks.overlap.items import Item, code_in, item_of_text, solution_files
from etude.tasks.overlap.reading import OverlapError, read_side

__all__ = [
    "Item",
    "Leak",
    "OverlapError",
    "code_in",
    "find_leaks",
    "item_of_text",
    "read_side",
    "solution_files",
]
