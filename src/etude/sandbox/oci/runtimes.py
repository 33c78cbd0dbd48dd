"""Container runtimes that put a kernel of their own between commands and the host's: gVisor, Kata, and Firecracker
below Kata. For each, this module says which isolation it adds to a backend, and whether it needs KVM on the container
engine's host.

A runtime is recognised by the name that it has in the engine, such as runsc, kata-fc or io.containerd.kata.v2. Any
other name is taken for a runtime that shares the host's kernel, as runc and crun do.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from etude.sandbox.contract import Capability

KVM = "/dev/kvm"


@dataclass(frozen=True, slots=True)
class RuntimeKind:
    name: str
    marks: tuple[str, ...]
    """A runtime is of this kind if its name in the container engine contains one of these texts."""
    capabilities: frozenset[Capability]
    machine: bool = False
    """Boxes are virtual machines, so the engine's host needs KVM."""


_MACHINE = frozenset({Capability.OWN_KERNEL, Capability.OWN_MACHINE})
KINDS = (
    RuntimeKind("Firecracker", ("firecracker", "kata-fc"), _MACHINE, machine=True),
    RuntimeKind("Kata", ("kata",), _MACHINE, machine=True),
    RuntimeKind("gVisor", ("runsc", "gvisor"), frozenset({Capability.OWN_KERNEL})),
)


def kind_of(runtime: str) -> RuntimeKind | None:
    return next((kind for kind in KINDS if any(mark in runtime.lower() for mark in kind.marks)), None)


def capabilities_of(runtime: str) -> frozenset[Capability]:
    kind = kind_of(runtime)
    return kind.capabilities if kind else frozenset()


def refusal(runtime: str, *, local: bool, kvm: str = KVM) -> str:
    """Return why this host cannot run boxes with the runtime; empty if no reason is known. No reason is ever known for
    an engine on another host (not `local`)."""
    kind = kind_of(runtime)
    if kind is None or not kind.machine or not local or os.path.exists(kvm):  # noqa: PTH110
        return ""
    return (
        f"sandbox.runtime = {runtime!r}: {kind.name} runs each box in a virtual machine, and this host has no {kvm}: "
        "use a host with hardware or nested virtualization (modprobe kvm), or runsc, which needs none"
    )
