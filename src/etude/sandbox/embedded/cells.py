"""Cells: folders with the files that boxes have written. A fork seals a cell (makes it read-only), which then serves as
a lower overlay layer.

A box holds its own cell and all sealed cells below it. A cell is removed when its last holder drops it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Cell:
    """A folder with the files that a box has written, and the number of boxes and operations that hold it."""

    path: str
    """Path of the cell (a folder with files that a box has written) in the zygote's root directory."""
    remove: Callable[[str], None]
    holders: int = 0
    layer: str = ""
    """Name of the store layer that holds a copy of this cell's files. It is empty until a snapshot needs the copy. Set
    for sealed (read-only) cells only."""

    @property
    def upper(self) -> str:
        return f"{self.path}/upper"


def hold(cells: list[Cell]) -> None:
    """Add one to the number of holders (boxes and operations that use the files) of each cell."""
    for cell in cells:
        cell.holders += 1


def drop(cells: list[Cell]) -> None:
    """Subtract one from the number of holders (boxes and operations that use the files) of each cell. Remove the cells
    that have no holder left."""
    for cell in cells:
        cell.holders -= 1
        if cell.holders == 0:
            cell.remove(cell.path)


def layers_of(sealed: list[Cell], image: tuple[str, ...]) -> list[str]:
    """Return the paths of a box's lower layers in the zygote's root, topmost first: the sealed cells, then the layers
    of the image. `image` are paths relative to the store."""
    return [*(cell.upper for cell in sealed), *(f"store/{path}" for path in image)]
