"""Finds out how boxes can be made on this host: as root, with subordinate ids, or as an ordinary user. For a missing
capability, gives one line that says how to get it."""

from __future__ import annotations

import os
import platform
import tempfile
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from etude.sandbox.contract import SandboxUnavailable
from etude.sandbox.embedded import knobs
from etude.sandbox.embedded.subuids import MissingSubids, find_subordinate_ids
from etude.sandbox.images.ids import IdRange
from etude.sandbox.inside import kernel

# The first range is above the one that systemd-nspawn uses and below 2^31. The second fits into the 65,536 ids that a
# container usually has.
_RANGES = ((2_000_000_000, 65_536), (32_768, 32_000))
_END = 1 << 31
"""All ids of boxes are below this number, because older kernels read ids in mount options as signed numbers."""


class Mode(StrEnum):
    """How boxes get their user ids."""

    ROOT = "root"
    """Run by root. Boxes get a range of unprivileged host ids, so a box has every user that its image defines."""
    SUBUID = "subuid"
    """Run by an ordinary user with subordinate ids, which are the boxes' range of ids."""
    USER = "user"
    """Run by a user without subordinate ids. The only id in a box is this user's own, which the box gives to the agent
    or to root. A box has no second user."""


@dataclass(frozen=True, slots=True)
class Host:
    mode: Mode
    memory_cells: bool
    """Whether what a box writes can be kept in a tmpfs of limited size. If not, it is kept in plain folders, and only
    the size of single files is limited."""
    ids: IdRange | None = None
    """The range of ids for boxes. None: boxes have one id, the caller's own."""
    lack: MissingSubids | None = None
    """Why an ordinary user has no subordinate ids for boxes; None in any other case."""


def probe_host() -> Host:
    """Find out how boxes can be made on this host. Raise SandboxUnavailable if it is certain that none can be. Other
    obstacles show only when the zygote starts (the process from which all boxes are cloned)."""
    if platform.system() != "Linux" or kernel.MACHINE not in ("x86_64", "aarch64"):
        raise SandboxUnavailable(
            f"boxes need Linux on x86_64 or aarch64; this is {platform.system()} on {kernel.MACHINE}"
        )
    if knobs.release_of(platform.release()) < (5, 12):
        raise SandboxUnavailable(
            f"boxes need Linux 5.12 or newer; this is {platform.release()}: install a newer kernel"
        )
    memory = _memory_cells()
    if os.geteuid() != 0:
        limit = knobs.number_in(Path("/proc/sys/user/max_user_namespaces"))
        if limit == 0:
            raise SandboxUnavailable(advice("user namespace", "user.max_user_namespaces is 0"))
        ids = find_subordinate_ids()
        return Host(Mode.USER, memory, lack=ids) if isinstance(ids, MissingSubids) else Host(Mode.SUBUID, memory, ids)
    needed = sum(1 << bit for bit in (kernel.CAP_SYS_ADMIN, kernel.CAP_SETUID, kernel.CAP_SETGID))
    if kernel.effective_capabilities() & needed != needed:
        raise SandboxUnavailable(
            "root without CAP_SYS_ADMIN, as in a plain Docker container: start it with --cap-add SYS_ADMIN "
            "--security-opt seccomp=unconfined --security-opt apparmor=unconfined, or run as an ordinary user"
        )
    return Host(Mode.ROOT, memory, _free_range())


def advice(step: str, error: str) -> str:
    """Return a one-line message for a sandbox that cannot start: the `error`, and the host setting that fixes it.
    `step` names the step of starting a box that failed (`StepFailed.step`)."""
    return f"the sandbox cannot start ({error}): {knobs.for_failure(step, knobs.Facts.read())}"


def _free_range() -> IdRange:
    """Return the first range of _RANGES whose host ids are mapped in this user namespace."""
    mapped = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    for base, count in _RANGES:
        for first, _, length in mapped:
            if first <= base and base + count <= first + length:
                end = min(first + length, _END)
                spare = (end - base) // count - 1 if base == _RANGES[0][0] else 0
                return IdRange(base, count, spare=spare)
    raise SandboxUnavailable(
        "root here has no ids to give to boxes (/proc/self/uid_map is too short): map 65,536 ids into this container"
    )


def _memory_cells() -> bool:
    """Whether tmpfs supports extended attributes user.*, which overlayfs needs. Linux does from 6.6 on. But
    distributions patch kernels, so if /dev/shm is writable, an attribute is set there to find out."""
    if not Path("/dev/shm").is_dir() or not os.access("/dev/shm", os.W_OK):
        return knobs.release_of(platform.release()) >= (6, 6)
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        try:
            os.setxattr(file.name, "user.overlay.opaque", b"y")
        except OSError:
            return False
    return True
