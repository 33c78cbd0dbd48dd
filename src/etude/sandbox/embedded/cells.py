"""Cells: what one box writes, in the zygote's world. A fork seals one, and it lives on below all who stand on it.

A box holds the cells it stands on, its own first; the last holder's going removes a cell.
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
    """Its name in the store, once a snapshot has needed it there. Only of sealed ones."""

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
    """As the zygote sees them, the top first. `image` are paths in the store."""
    return [*(cell.upper for cell in sealed), *(f"store/{path}" for path in image)]
