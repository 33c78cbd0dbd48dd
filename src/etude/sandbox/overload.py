"""Whose fault is a wall clock that expired? Where far more waits to run than the host has cores, the host's.

A limit in CPU time needs no such excuse: a busy host does not use it up.
"""

from __future__ import annotations

import os

from etude.sandbox.contract import SandboxError

OVERLOAD = 8.0
"""Load per core, averaged by the kernel over the last minute, from which the host is blamed."""


class HostOverloaded(SandboxError):
    """A command reached its time limit on an overloaded host: it says nothing about whoever wrote the command."""


def host_overloaded() -> bool:
    return os.getloadavg()[0] / (os.cpu_count() or 1) > OVERLOAD
