"""What peers need, kept in the user's cache, apart from our packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path


def peers_python(requirement: str, *beside: str) -> Path:
    """Return the Python of a virtual environment with a peer, and with the packages that it wants beside it."""
    place, ready = _place(requirement)
    if not ready.exists():
        venv.create(place, with_pip=True)
        subprocess.run([place / "bin" / "pip", "install", "--quiet", requirement, *beside], check=True)
        ready.touch()
    return place / "bin" / "python"


def beside_ours(requirement: str) -> Path:
    """Return a folder for PYTHONPATH that holds a package alone, for a peer that otherwise runs on what we have."""
    place, ready = _place(requirement)
    if not ready.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", place, requirement]
        subprocess.run(command, check=True)
        ready.touch()
    return place


def _place(requirement: str) -> tuple[Path, Path]:
    """Return the folder of a requirement, emptied if the installation in it was not finished, and the mark that it
    was."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "etude" / "benchmarks"
    place, ready = cache / requirement, cache / requirement / "ready"
    if not ready.exists():
        print(f"installing {requirement} into {place}")
        shutil.rmtree(place, ignore_errors=True)
    return place, ready
