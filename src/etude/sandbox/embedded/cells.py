"""Cells: folders with the files that boxes have written. A fork seals a cell (makes it read-only), which then serves as
a lower overlay layer.

A box holds its own cell and all sealed cells below it. A cell is removed when its last holder drops it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Cell:
    """A folder with the files that a box has written."""

    path: str
    """Path of this cell's folder in the zygote's root directory."""
    remove: Callable[[str], None]
    holders: int = 0
    layer: str = ""
    """The store layer with a copy of this sealed cell's files; empty until a snapshot needs it."""

    @property
    def upper(self) -> str:
        return f"{self.path}/upper"


def hold(cells: list[Cell]) -> None:
    for cell in cells:
        cell.holders += 1


def drop(cells: list[Cell]) -> None:
    """Let go of these cells, and remove those that nothing holds any more."""
    for cell in cells:
        cell.holders -= 1
        if cell.holders == 0:
            cell.remove(cell.path)


def layers_of(sealed: list[Cell], image: tuple[str, ...]) -> list[str]:
    """Return a box's lower layers in the zygote's root, topmost first: the sealed cells, then the image's layers
    (relative to the store)."""
    return [*(cell.upper for cell in sealed), *(f"store/{path}" for path in image)]
