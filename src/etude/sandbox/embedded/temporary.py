"""Folders for a backend that is needed for a while only."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from etude.sandbox.embedded.probe import probe_host
from etude.sandbox.images.store import remove_store


@contextmanager
def temporary_store(prefix: str) -> Iterator[Path]:
    """Goes at the end, also where what is in it belongs to ids of boxes. The backend must be closed by then."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield folder
    finally:
        remove_store(folder, probe_host().ids)


@contextmanager
def store_in(folder: Path) -> Iterator[Path]:
    """The same in a place of one's own, which a later owner finds again: what a killed one left there goes first."""
    forget_store(folder)
    folder.mkdir(parents=True, mode=0o700)
    try:
        yield folder
    finally:
        forget_store(folder)


def forget_store(folder: Path) -> None:
    """Nobody may be at work there."""
    if folder.exists():
        remove_store(folder, probe_host().ids)
