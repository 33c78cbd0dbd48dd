"""The classes of attacks on a sandbox. Each has an invariant: what no attack of the class may achieve, however it is
spelled. A mode (a way to isolate boxes) promises this if its backend has the features and capabilities that the class
needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from etude.sandbox.contract import Capability, Feature

Need = Feature | Capability


@dataclass(frozen=True, slots=True)
class AttackClass:
    name: str
    invariant: str
    """The rule that no attack of the class may break, in the words of docs/threats.md."""
    needs: tuple[Need, ...] = ()
    """Features and capabilities that a backend must have for a promise of the invariant. A single attack may need
    more."""


PATHS = AttackClass(
    "path walks",
    "No path walk of ours follows a link that a box could have made. A tree is copied only while its processes are "
    "held or its files read-only; else `BoxBusy`.",
    (Feature.SNAPSHOT, Feature.FORK, Capability.HOST_FILES),
)
FILES = AttackClass(
    "files of the host", "Commands reach no file of the host but its system folders.", (Capability.HOST_FILES,)
)
FOLDERS = AttackClass("system folders", "Commands change nothing in the host's folders.", (Capability.HOST_FILES,))
SETTINGS = AttackClass(
    "kernel settings",
    "Commands change no setting of the kernel and read none of its secrets.",
    (Capability.NAMESPACES,),
)
NAMESPACES = AttackClass(
    "namespaces", "Commands make no mount and no namespace, and enter no other.", (Capability.SYSTEM_CALLS,)
)
DEVICES = AttackClass(
    "devices", "Commands reach harmless devices and their own terminal alone.", (Capability.OWN_INIT,)
)
NETWORK = AttackClass("network", "Commands reach no address but their own loopback.", (Feature.NO_NETWORK,))
CALLS = AttackClass(
    "system calls", "Commands make no system call of the deny-list, by no convention.", (Capability.SYSTEM_CALLS,)
)
INIT = AttackClass(
    "pid 1",
    "Commands neither end, trace nor read pid 1. One that breaks its protocol loses its box alone.",
    (Capability.OWN_INIT,),
)
SERVING = AttackClass(
    "requests",
    "No name, file or process of a box makes a request fail except by a refusal, or ends or blocks the box. The "
    "memory of an answer is bounded.",
)
OTHERS = AttackClass(
    "other processes",
    "Commands see and signal no process of the host, another box or another user.",
    (Capability.NAMESPACES,),
)
RIGHTS = AttackClass(
    "rights", "Commands have no right over the host, and gain none by set-id programs.", (Capability.NAMESPACES,)
)
NEIGHBOURS = AttackClass("neighbours", "A box learns nothing of other boxes.", (Capability.NAMESPACES,))
TABLES = AttackClass(
    "kernel tables",
    "What a box takes of the kernel's tables (file watches, queues, pipes...) neither another box nor the host misses.",
)
BUFFERS = AttackClass(
    "socket buffers",
    "What a box keeps in buffers of sockets and pipes counts towards its memory.",
    (Capability.BUFFER_MEMORY,),
)
PROCESSES = AttackClass(
    "process limit", "No box has more processes than its limit, whatever their users.", (Feature.PROCESS_LIMIT,)
)
FILLING = AttackClass(
    "filling up", "What a box fills (memory, disk, inodes, descriptors) is full for it alone.", (Feature.MEMORY_LIMIT,)
)
HIDING = AttackClass("hiding", "When a command returns, everything that it started has ended.", (Capability.OWN_INIT,))
EGRESS = AttackClass(
    "egress",
    "A box reaches an address only if it is known as public, or private where the policy allows that. An IPv6 "
    "address that embeds an IPv4 address is judged by both.",
    (Feature.EGRESS,),
)
IMAGES = AttackClass(
    "images",
    "A malformed image or layer is refused as such, and leads out of the store nowhere. A full disk raises `DiskFull`.",
    (Feature.ROOT_USER,),
)

CLASSES = (
    PATHS, FILES, FOLDERS, SETTINGS, NAMESPACES, DEVICES, NETWORK, CALLS, INIT, SERVING, OTHERS, RIGHTS, NEIGHBOURS,
    TABLES, BUFFERS, PROCESSES, FILLING, HIDING, EGRESS, IMAGES,
)  # fmt: skip

WITHOUT: dict[Need, str] = {
    Feature.SNAPSHOT: "files of a box are not stored",
    Feature.FORK: "boxes are not copied",
    Feature.NO_NETWORK: "commands have the host's network",
    Feature.EGRESS: "there is no proxy: no box reaches any host",
    Feature.MEMORY_LIMIT: "nobody limits memory",
    Feature.PROCESS_LIMIT: "nobody counts the processes of a box",
    Feature.DISK_LIMIT: "only the size of single files is limited",
    Feature.SECOND_USER: "a box has one user",
    Feature.ROOT_USER: "no command runs as root, and images with other users are refused",
    Feature.PTY: "commands have no terminal",
    Feature.BACKGROUND: "no command runs in the background",
    Feature.OWN_IDS: "boxes share user ids, and what the kernel counts by them, with others of their user",
    Feature.ISOLATED: "nothing keeps commands in, so nothing is graded",
    Capability.HOST_FILES: "commands have the files of the user who runs this",
    Capability.NAMESPACES: "commands see the host's processes, devices and settings as their user does",
    Capability.OWN_INIT: "pid 1 and /dev are not ours; what a command leaves behind is ended by a watch",
    Capability.SYSTEM_CALLS: "commands may make every system call",
    Capability.KERNEL_TABLES: "boxes share the kernel's tables with everything that has their user id",
    Capability.BUFFER_MEMORY: "nobody limits buffers of sockets and pipes (cgroups would)",
    Capability.OWN_KERNEL: "boxes share the host's kernel",
    Capability.OWN_MACHINE: "boxes are no virtual machines",
}
"""What it means for a mode (a way to isolate boxes) not to have a feature or capability."""


def lacking(needs: Iterable[Need], has: frozenset[Need]) -> list[Need]:
    return [need for need in needs if need not in has]
