"""Cells: folders with what boxes write, in the zygote's world. A fork seals a cell, which stays as a lower layer.

A box holds all cells that it stands on, its own first. A cell is removed when its last holder drops it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Cell:
    path: str
    remove: Callable[[str], None]
    holders: int = 0
    layer: str = ""
    """Name of its copy in the store, made when a snapshot needs one. Only sealed cells have it."""

    @property
    def upper(self) -> str:
        return f"{self.path}/upper"


def hold(cells: list[Cell]) -> None:
    for cell in cells:
        cell.holders += 1


def drop(cells: list[Cell]) -> None:
    for cell in cells:
        cell.holders -= 1
        if cell.holders == 0:
            cell.remove(cell.path)


def layers_of(sealed: list[Cell], image: tuple[str, ...]) -> list[str]:
    """Layer paths as the zygote sees them, topmost first. `image` are paths relative to the store."""
    return [*(cell.upper for cell in sealed), *(f"store/{path}" for path in image)]
