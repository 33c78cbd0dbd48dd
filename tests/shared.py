"""What all workers of a session share: a folder, and things in it that one worker makes and the others wait for."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the session's temporary folder, the same one for every worker."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def made_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """Return a folder that `make` has filled. It gets its name once it is complete: what one worker failed to make, the
    next one makes anew."""
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            begun = folder.with_name(f"{folder.name}-{os.getpid()}")
            make(begun)
            begun.rename(folder)
    return folder
