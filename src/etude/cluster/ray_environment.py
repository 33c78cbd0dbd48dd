"""Prepares what a ray cluster runs in: environment variables, a private folder, and the guardian process. Does not
import ray.

The folder is accessible to this user only (0700) and holds the record of processes; ray's own folder lies inside it.
"""

from __future__ import annotations

import functools
import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path

from etude.cluster import guardian

STORE_BYTES = 256 * 2**20
"""Size of the object store. Ray's minimum is 75 MiB. What does not fit is spilled to the cluster's folder."""
SOCKET_PATH_BYTES = 107
"""Maximum length of the path of a unix socket."""
TOKEN = "RAY_AUTH_TOKEN"
"""Environment variable with the cluster's token. It is removed as soon as ray has read it, so that no command inherits
it."""
RAY_FOLDER = "ray"
"""Name of ray's folder inside the private one. Ray itself makes its folder accessible to everybody."""


def prepare_environment() -> None:
    """Set the environment variables that ray reads when it is imported. Services inherit them."""
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ[TOKEN] = auth_token()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # If off, ray uses the loopback as its node's address and listens nowhere else; if on, it listens on every
    # interface.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    # With ray's default niceness of 15, everything else on the machine goes first: a browser could starve training.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - its own spelling
    # Otherwise ray prints every death to the driver's stdout; ServiceDied already reports it, once, to the caller.
    os.environ["RAY_DEDUP_LOGS_SKIP_REGEX"] = "."
    os.environ.pop("RAY_ADDRESS", None)


@functools.cache
def auth_token() -> str:
    """Return the cluster's auth token. It is the same for the life of this process, since ray keeps the first one it
    reads."""
    return secrets.token_hex(32)


def private_folder() -> Path:
    """Clean up the folders of dead drivers, then create the cluster's folder and return it. Its path is short because
    ray puts unix sockets below it."""
    base = Path(tempfile.gettempdir())
    below = len("/etude-ray-12345678/ray/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store.12")
    if len(str(base)) + below > SOCKET_PATH_BYTES:
        base = Path("/tmp")
    for folder in base.glob("etude-ray-*"):
        if _is_mine(folder) and guardian.abandoned(folder):
            guardian.sweep(folder)
    folder = Path(tempfile.mkdtemp(prefix="etude-ray-", dir=base))
    guardian.claim(folder)
    return folder


def _is_mine(folder: Path) -> bool:
    """Whether this user owns the folder."""
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


def store_folder(folder: Path) -> str | None:
    """Return the folder for the object store: the cluster's own if /dev/shm is too small (64 MB in many containers),
    else None."""
    try:
        shm = os.statvfs("/dev/shm")
    except OSError:
        return str(folder)
    return None if shm.f_bavail * shm.f_frsize > 1.2 * STORE_BYTES else str(folder)
