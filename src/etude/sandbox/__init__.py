"""Sandboxes: isolated, forkable boxes with their own files and processes, and no network unless a policy allows some.

The package holds the contract, the embedded backend (no daemon, no root), and one over a container engine."""

from etude.sandbox.contract import (
    Box,
    BoxBusy,
    BoxSpec,
    BuildFailed,
    DiskFull,
    Egress,
    ExecResult,
    Feature,
    HostOverloaded,
    ImageError,
    Limits,
    Poll,
    Process,
    RequestRefused,
    SandboxError,
    Sandboxes,
    SandboxLost,
    SandboxUnavailable,
    Terminal,
)
from etude.sandbox.embedded import EmbeddedSandboxes, forget_store, store_in, temporary_store
from etude.sandbox.oci import OciSandboxes
from etude.sandbox.open import beside, limits_of, open_sandboxes

__all__ = [
    "Box",
    "BoxBusy",
    "BoxSpec",
    "BuildFailed",
    "DiskFull",
    "Egress",
    "EmbeddedSandboxes",
    "ExecResult",
    "Feature",
    "HostOverloaded",
    "ImageError",
    "Limits",
    "OciSandboxes",
    "Poll",
    "Process",
    "RequestRefused",
    "SandboxError",
    "SandboxLost",
    "SandboxUnavailable",
    "Sandboxes",
    "Terminal",
    "beside",
    "forget_store",
    "limits_of",
    "open_sandboxes",
    "store_in",
    "temporary_store",
]
