"""Boxes: their own files, processes and no network, forkable.

The contract, and a backend that needs no daemon and no root."""

from etude.sandbox.contract import (
    Box,
    BoxBusy,
    BoxSpec,
    DiskFull,
    ExecResult,
    Feature,
    Limits,
    RequestRefused,
    SandboxError,
    Sandboxes,
    SandboxLost,
    SandboxUnavailable,
)
from etude.sandbox.embedded import EmbeddedSandboxes, limits_of, open_sandboxes
from etude.sandbox.overload import HostOverloaded, host_overloaded

__all__ = [
    "Box",
    "BoxBusy",
    "BoxSpec",
    "DiskFull",
    "EmbeddedSandboxes",
    "ExecResult",
    "Feature",
    "HostOverloaded",
    "Limits",
    "RequestRefused",
    "SandboxError",
    "SandboxLost",
    "SandboxUnavailable",
    "Sandboxes",
    "host_overloaded",
    "limits_of",
    "open_sandboxes",
]
