"""Sandboxes: isolated, forkable boxes with their own files and processes. A box has no network unless an egress policy
allows some hosts.

The package holds the contract that every sandbox backend keeps, the embedded backend (no daemon, no root), fallback
backends for hosts without namespaces, and a backend over a container engine (Docker, podman).
"""

from etude.sandbox.contract import (
    Box,
    BoxBusy,
    BoxSpec,
    BuildFailed,
    Capability,
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
from etude.sandbox.open import limits_of, open_sandboxes, without_fleet

__all__ = [
    "Box",
    "BoxBusy",
    "BoxSpec",
    "BuildFailed",
    "Capability",
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
    "forget_store",
    "limits_of",
    "open_sandboxes",
    "store_in",
    "temporary_store",
    "without_fleet",
]
