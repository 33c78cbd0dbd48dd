"""A cluster's private folder, and the guardian process: it kills every process that works in the folder, then removes
the folder.

The folder is accessible to this user only (0700). It holds the record of the cluster's processes and their sockets; ray
has its own folder inside it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from etude.cluster import guardian

PREFIX = "etude-run-"
"""Name prefix of every private folder. The backends "processes" and "ray" share it, so each also cleans up what dead
drivers of the other have left behind."""
SOCKET_PATH_BYTES = 107
"""Maximum length of the path of a unix socket, in bytes."""


def private_folder() -> Path:
    """Clean up the folders of dead drivers, then create the cluster's folder and return it. Its path is kept short
    because unix sockets are created below it."""
    base = Path(tempfile.gettempdir())
    below = len(f"/{PREFIX}12345678/ray/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store.12")
    if len(str(base)) + below > SOCKET_PATH_BYTES:
        base = Path("/tmp")
    for folder in base.glob(f"{PREFIX}*"):
        if _is_mine(folder) and guardian.abandoned(folder):
            guardian.sweep(folder)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    guardian.claim(folder)
    return folder


def _is_mine(folder: Path) -> bool:
    try:
        return folder.stat().st_uid == os.getuid()
    except FileNotFoundError:  # Another driver has just closed and removed it.
        return False


def start_guardian(folder: Path) -> subprocess.Popen[bytes]:
    """Start the guardian of a cluster's folder. It cleans up when its stdin is closed, or once this process is dead."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", guardian.__file__, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )


def end_guardian(watcher: subprocess.Popen[bytes], folder: Path) -> list[str]:
    """Sweep the folder, then end the guardian. Return the identities of processes that did not end."""
    left = guardian.sweep(folder)
    assert watcher.stdin is not None
    watcher.stdin.close()
    watcher.wait(15)
    return left
