"""Cells: folders with what boxes have written. A fork seals a cell, which then serves as a lower layer.

A box holds all cells that it stands on, its own first. A cell is removed when its last holder drops it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Cell:
    """One cell, with the number of boxes and operations that hold it."""

    path: str
    """Path in the zygote's root."""
    remove: Callable[[str], None]
    holders: int = 0
    layer: str = ""
    """Name of the cell's copy in the store, made when a snapshot needs one. Only sealed cells have a copy."""

    @property
    def upper(self) -> str:
        return f"{self.path}/upper"


def hold(cells: list[Cell]) -> None:
    """Add one holder to each cell."""
    for cell in cells:
        cell.holders += 1


def drop(cells: list[Cell]) -> None:
    """Remove one holder from each cell. Cells without holders are removed."""
    for cell in cells:
        cell.holders -= 1
        if cell.holders == 0:
            cell.remove(cell.path)


def layers_of(sealed: list[Cell], image: tuple[str, ...]) -> list[str]:
    """Return layer paths as the zygote sees them, topmost first. `image` are paths of the image's layers, relative to
    the store."""
    return [*(cell.upper for cell in sealed), *(f"store/{path}" for path in image)]
