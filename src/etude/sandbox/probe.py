"""Which mode this host allows, and for a missing capability the one line that says how to get it. Starts nothing."""

from __future__ import annotations

import os
import platform
import tempfile
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from etude.sandbox.contract import SandboxUnavailable
from etude.sandbox.inside import kernel

# Above the range that systemd-nspawn takes from, below 2^31; the second fits a container's usual 65,536 ids.
_OUTER_BASES = (2_000_000_000, 64_900)
_OUTER_COUNT = 3


class Mode(StrEnum):
    ROOT = "root"
    """Run by root: boxes get unprivileged host ids of their own, one for the box's root, agent and grader each."""
    USER = "user"
    """Run by an ordinary user: that user's id is the box's agent; there is no second user."""


@dataclass(frozen=True, slots=True)
class Host:
    mode: Mode
    outer_ids: list[int] | None
    memory_cells: bool
    """What a box writes lives in a size-limited memory file system, else in plain folders that only files limit."""


def probe_host() -> Host:
    """SandboxUnavailable when it is certain that no box can be made; the zygote's start finds the rest."""
    if platform.system() != "Linux" or kernel.MACHINE not in ("x86_64", "aarch64"):
        raise SandboxUnavailable(
            f"boxes need Linux on x86_64 or aarch64; this is {platform.system()} on {kernel.MACHINE}"
        )
    if _release() < (5, 12):
        raise SandboxUnavailable(
            f"boxes need Linux 5.12 or newer; this is {platform.release()}: install a newer kernel"
        )
    memory = _memory_cells()
    if os.geteuid() != 0:
        limit = _read_int("/proc/sys/user/max_user_namespaces")
        if limit == 0:
            raise SandboxUnavailable(advice("user namespace", "user.max_user_namespaces is 0"))
        return Host(Mode.USER, None, memory)
    needed = sum(1 << bit for bit in (kernel.CAP_SYS_ADMIN, kernel.CAP_SETUID, kernel.CAP_SETGID))
    if kernel.effective_capabilities() & needed != needed:
        raise SandboxUnavailable(
            "root without CAP_SYS_ADMIN, as in a plain Docker container: start it with --cap-add SYS_ADMIN "
            "--security-opt seccomp=unconfined --security-opt apparmor=unconfined, or run as an ordinary user"
        )
    return Host(Mode.ROOT, _outer_ids(), memory)


def advice(step: str, error: str) -> str:
    """One line: what failed, and the knob that grants it."""
    return f"the sandbox cannot start ({error}): {_knob(step)}"


def _knob(step: str) -> str:
    if step in ("user namespace", "id map", "mount namespace", "private mounts", "user namespace of a box"):
        if _read_int("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == 1:
            return "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
        if _read_int("/proc/sys/kernel/unprivileged_userns_clone") == 0:
            return "sudo sysctl -w kernel.unprivileged_userns_clone=1"
        limit = _read_int("/proc/sys/user/max_user_namespaces")
        if limit is not None and limit < 1000:
            return "sudo sysctl -w user.max_user_namespaces=65536"
        if _in_container():
            return "start the container with --security-opt seccomp=unconfined --security-opt apparmor=unconfined"
        return "the kernel must allow unprivileged user namespaces (CONFIG_USER_NS, no security module against them)"
    if step == "namespaces":
        return "raise user.max_{net,pid,mnt,ipc,uts}_namespaces by sudo sysctl -w, or run fewer boxes"
    if step == "mount proc":
        return "the host hides parts of /proc: start the container with --security-opt systempaths=unconfined"
    if step == "overlay":
        return "overlayfs in user namespaces needs Linux 5.11 and the overlay module: sudo modprobe overlay"
    if step.startswith("bind "):
        return f"{step.removeprefix('bind ')} must be readable by the user who runs this"
    return "run `etude sandbox doctor`"


def _outer_ids() -> list[int]:
    """Three host ids in a row that are mapped here and belong to nobody."""
    ranges = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    for base in _OUTER_BASES:
        if any(first <= base and base + _OUTER_COUNT <= first + count for first, _, count in ranges):
            return [base + index for index in range(_OUTER_COUNT)]
    raise SandboxUnavailable(
        f"root here has no ids to give to boxes (/proc/self/uid_map lacks {_OUTER_BASES[1]}): "
        "map 65,536 ids into this container"
    )


def _memory_cells() -> bool:
    """tmpfs keeps user.* attributes, which overlayfs needs, from Linux 6.6 on; asked, since kernels are patched."""
    if not Path("/dev/shm").is_dir() or not os.access("/dev/shm", os.W_OK):
        return _release() >= (6, 6)
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        try:
            os.setxattr(file.name, "user.overlay.opaque", b"y")
        except OSError:
            return False
    return True


def _release() -> tuple[int, int]:
    major, minor = platform.release().split(".")[:2]
    return int(major), int("".join(character for character in minor if character.isdigit()) or 0)


def _read_int(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None


def _in_container() -> bool:
    return Path("/.dockerenv").exists() or Path("/run/.containerenv").exists()
