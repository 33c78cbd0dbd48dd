"""Prepares what a ray cluster runs in: environment variables, and the folder of its object store. Does not import
ray."""

from __future__ import annotations

import functools
import os
import secrets
from pathlib import Path

STORE_BYTES = 256 * 2**20
"""Size of ray's object store; its minimum is 75 MiB. What does not fit is spilled to the cluster's folder."""
TOKEN = "RAY_AUTH_TOKEN"
"""Environment variable with the cluster's token. It is removed once ray has read it, so that no command inherits it."""
RAY_FOLDER = "ray"
"""Name of ray's folder inside the cluster's private folder, which shields it: ray opens its own folder to everybody."""


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
    """Return the token of this process's clusters. It never changes, since ray keeps the first token that it reads."""
    return secrets.token_hex(32)


def store_folder(folder: Path) -> str | None:
    """Return `folder` if /dev/shm is too small for ray's object store (64 MB in many containers), else None."""
    try:
        shm = os.statvfs("/dev/shm")
    except OSError:
        return str(folder)
    return None if shm.f_bavail * shm.f_frsize > 1.2 * STORE_BYTES else str(folder)
