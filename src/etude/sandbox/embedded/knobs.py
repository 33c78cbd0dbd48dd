"""Advice for each capability that this host does not offer to boxes: the exact command or setting that provides it.

The functions that give advice are pure: any advice can be produced on any machine from made-up facts.
"""

from __future__ import annotations

import getpass
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from etude.sandbox.embedded.cgroups.files import CPU, MEMORY, PIDS
from etude.sandbox.embedded.subuids import MissingSubids, next_free
from etude.sandbox.images.ids import IdRange
from etude.sandbox.inside.subordinate import STEP
from etude.sandbox.inside.users import MAX_ID

_USERNS_STEPS = {"user namespace", "id map", "mount namespace", "private mounts", "user namespace of a box"}
COUNTS_PER_NAMESPACE = (5, 14)
"""Linux version from which on the kernel counts processes for a box's user namespace, so that each box has a limit of
its own. Older versions count for a user of the host."""
UNIFIED = "start the kernel with systemd.unified_cgroup_hierarchy=1"
_CONTAINER = "start the container with --security-opt seccomp=unconfined --security-opt apparmor=unconfined"


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a host on which the advice depends. A number is None if the host has no such setting."""

    root: bool = False
    user: str = "user"
    kernel: tuple[int, int] = (6, 12)
    container: bool = False
    systemd: bool = True
    apparmor_userns: int | None = None
    userns_clone: int | None = None
    max_namespaces: int | None = None
    cgroup_versions: frozenset[int] = frozenset({2})
    """The cgroup versions that are mounted anywhere."""
    next_subordinate: int = 100_000

    @classmethod
    def read(cls, top: Path = Path("/")) -> Facts:
        mounts = _text(top / "proc/self/mountinfo")
        return cls(
            root=os.geteuid() == 0,
            user=_user_name(),
            kernel=release_of(platform.release()),
            container=(top / ".dockerenv").exists() or (top / "run/.containerenv").exists(),
            systemd=(top / "run/systemd/system").is_dir(),
            apparmor_userns=number_in(top / "proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
            userns_clone=number_in(top / "proc/sys/kernel/unprivileged_userns_clone"),
            max_namespaces=number_in(top / "proc/sys/user/max_user_namespaces"),
            cgroup_versions=frozenset(
                2 if " - cgroup2 " in line else 1 for line in mounts.splitlines() if " - cgroup" in line
            ),
            next_subordinate=next_free(top),
        )


def for_failure(step: str, facts: Facts) -> str:
    """Return advice for a failed step of starting a box (`StepFailed.step`)."""
    if step in _USERNS_STEPS:
        return _for_user_namespaces(facts)
    if step == STEP:
        return for_users(MissingSubids(step), facts)
    if step == "namespaces":
        return "raise user.max_{net,pid,mnt,ipc,uts,cgroup}_namespaces by sudo sysctl -w, or run fewer boxes"
    if step == "mount proc":
        return "the host hides parts of /proc: start the container with --security-opt systempaths=unconfined"
    if step == "overlay":
        return "overlayfs in user namespaces needs Linux 5.11 and the overlay module: sudo modprobe overlay"
    if step.startswith("bind "):
        return f"{step.removeprefix('bind ')} must be readable by the user who runs this"
    return "run `etude sandbox doctor`"


def _for_user_namespaces(facts: Facts) -> str:
    if facts.apparmor_userns == 1:
        return "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
    if facts.userns_clone == 0:
        return "sudo sysctl -w kernel.unprivileged_userns_clone=1"
    if facts.max_namespaces is not None and facts.max_namespaces < 1000:
        return "sudo sysctl -w user.max_user_namespaces=65536"
    if facts.container:
        return _CONTAINER
    return "the kernel must allow unprivileged user namespaces (CONFIG_USER_NS, no security module against them)"


def for_users(lack: MissingSubids, facts: Facts) -> str:
    if lack.what == "program":
        return "sudo apt-get install uidmap (other than on Debian and Ubuntu: the package with newuidmap)"
    if lack.what == "range":
        rows = f"{facts.next_subordinate}-{facts.next_subordinate + MAX_ID}"
        return f"sudo usermod --add-subuids {rows} --add-subgids {rows} {facts.user}"
    return (
        f"newuidmap and newgidmap are refused ({lack.what}): they must be set-uid root on a mount without nosuid, and "
        "be run without no_new_privs under your own primary group"
    )


def for_cgroups(facts: Facts) -> str:
    """Return advice on how to let the kernel enforce the memory limit of a whole box."""
    if facts.container:
        return "start the container with --cgroupns=private and a writable /sys/fs/cgroup (--privileged has both)"
    if 2 not in facts.cgroup_versions:
        return f"run as root, or {UNIFIED}"
    if facts.root:
        return "mount -o remount,rw /sys/fs/cgroup"
    if facts.systemd:
        return (
            "systemd-run --user --scope -p Delegate=yes etude ... (where memory is not handed on, once: "
            "sudo install -D /dev/stdin /etc/systemd/system/user@.service.d/delegate.conf "
            "<<< $'[Service]\\nDelegate=cpu memory pids')"
        )
    top, own = "/sys/fs/cgroup", f"/sys/fs/cgroup/{facts.user}"
    controllers = " ".join(f"+{name}" for name in (MEMORY, PIDS, CPU))
    return (
        f'sudo sh -c "echo {controllers} >{top}/cgroup.subtree_control; mkdir -p {own}; '
        f'chown -R {facts.user} {own}; echo $$ >{own}/cgroup.procs" (in the shell from which you start)'
    )


def for_disk_limits(facts: Facts) -> str:
    return f"{for_kernel((6, 6), facts)}: its tmpfs keeps what overlayfs needs"


def for_kernel(wanted: tuple[int, int], facts: Facts) -> str:
    return f"Linux {wanted[0]}.{wanted[1]} or newer (this is {facts.kernel[0]}.{facts.kernel[1]})"


def for_own_ids(ids: IdRange | None, facts: Facts) -> str:
    """Return advice on how to give each box a range of host ids of its own. If only root can do that, the advice also
    says how to make shared ids less harmful."""
    if ids is None or ids.subordinate:
        return "run as root; at least pipes keep their size after sudo sysctl -w fs.pipe-user-pages-soft=0"
    if not ids.spare:
        return "map more ids into this container: 65,536 for each box, from 2,000,000,000 on"
    store = "a store on ext4, xfs, btrfs or tmpfs (id-mapped layers of overlayfs)"
    return store if facts.kernel >= (6, 3) else f"{for_kernel((6, 3), facts)}, and {store}"


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def number_in(path: Path) -> int | None:
    """Return the number in a file, or None if the file is missing or holds no number."""
    text = _text(path).strip()
    return int(text) if text.lstrip("-").isdecimal() else None


def release_of(text: str) -> tuple[int, int]:
    major, _, rest = text.partition(".")
    minor = rest.split(".")[0]
    return int(major), int("".join(character for character in minor if character.isdigit()) or 0)
