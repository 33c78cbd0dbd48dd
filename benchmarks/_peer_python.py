"""Virtual environments for peers, kept in the user's cache, apart from our packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import venv
from pathlib import Path


def peers_python(requirement: str, *beside: str) -> Path:
    """Return the Python of a virtual environment with a peer, and with the packages that it wants beside it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "etude" / "benchmarks"
    place, ready = cache / requirement, cache / requirement / "ready"
    if not ready.exists():
        print(f"installing {requirement} into {place}")
        shutil.rmtree(place, ignore_errors=True)
        venv.create(place, with_pip=True)
        subprocess.run([place / "bin" / "pip", "install", "--quiet", requirement, *beside], check=True)
        ready.touch()
    return place / "bin" / "python"
