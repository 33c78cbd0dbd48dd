"""Makes and removes store folders for embedded backends that are needed only for a short time."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from etude.sandbox.contract import SandboxUnavailable
from etude.sandbox.embedded.probe import probe_host
from etude.sandbox.images.store import remove_store


@contextmanager
def temporary_store(prefix: str) -> Iterator[Path]:
    """Make a temporary folder for a backend, and remove it at the end, including files of the boxes' user ids. Close
    the backend before the end."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield folder
    finally:
        _remove(folder)


@contextmanager
def store_in(folder: Path) -> Iterator[Path]:
    """Make `folder` for a backend, and remove it at the end. What a killed process has left there is removed first."""
    forget_store(folder)
    folder.mkdir(parents=True, mode=0o700)
    try:
        yield folder
    finally:
        forget_store(folder)


def forget_store(folder: Path) -> None:
    """Remove the store folder of a backend, if it exists. No backend may be using it."""
    if folder.exists():
        _remove(folder)


def _remove(folder: Path) -> None:
    try:
        ids = probe_host().ids
    except SandboxUnavailable:  # So no embedded backend has left files of other user ids.
        ids = None
    remove_store(folder, ids)
