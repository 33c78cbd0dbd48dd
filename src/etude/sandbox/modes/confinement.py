"""Confines the commands of folder boxes (boxes that are folders of the host) by bubblewrap, by Landlock, or not at all.
Each class states what it enforces."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from etude.sandbox.contract import Capability, Feature
from etude.sandbox.images.host_base import SYSTEM
from etude.sandbox.inside import kernel
from etude.sandbox.inside.zygote_root import HOSTNAME
from etude.sandbox.modes import landlock
from etude.sandbox.modes.runner import FILTER_DESCRIPTOR

_COMMON = frozenset({Feature.FORK, Feature.SNAPSHOT, Feature.MEMORY_LIMIT, Feature.BACKGROUND})
_ETC_NAMES = (
    "alternatives", "ssl", "ca-certificates", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "passwd", "group",
    "nsswitch.conf", "hosts", "hostname", "services", "protocols", "os-release", "debian_version", "localtime",
    "profile",
    "bash.bashrc", "shells", "terminfo", "magic", "mime.types", "python3", "python3.11",
)  # fmt: skip
_NOT_AS_ROOT = "not as root: the host's root would be inside, and what it owns with it; run as an ordinary user"
_DEVICES = ("null", "zero", "full", "random", "urandom")


@dataclass(frozen=True, slots=True)
class BoxFolder:
    root: Path
    tools: Path
    """A host folder for files that all boxes of a backend share, such as the link to bwrap. Commands cannot reach
    it."""
    workdir: str
    binds: tuple[tuple[str, str], ...] = field(default=())
    """(host folder, folder in the box) of each host folder that is shown in the box."""


class Confinement(Protocol):
    """A way to confine the commands of folder boxes."""

    name: str
    features: frozenset[Feature]
    capabilities: frozenset[Capability]

    @property
    def text(self) -> str:
        """What is enforced, in one line for `etude sandbox doctor`."""
        ...

    def refusal(self) -> str:
        """Return why this confinement does not work on this host; empty if it does."""
        ...

    def job(self, folder: BoxFolder, argv: list[str], cwd: str, env: dict[str, str]) -> dict[str, Any]:
        """Return the job (see runner.main) that runs `argv` confined; the caller adds the limits. `cwd` is a path in
        the box."""
        ...


class Bubblewrap:
    """Commands have their own namespaces (by bwrap), no network, and only the box's files."""

    name = "bubblewrap"
    features = _COMMON | {Feature.ISOLATED, Feature.NO_NETWORK}
    capabilities = frozenset({Capability.HOST_FILES, Capability.NAMESPACES, Capability.SYSTEM_CALLS})
    text = (
        "namespaces made by bwrap, which may be set-uid root where yours are forbidden; one user per box; copied only "
        "while no command runs"
    )

    def __init__(self) -> None:
        self.program = shutil.which("bwrap") or ""

    def refusal(self) -> str:
        if os.geteuid() == 0:
            return _NOT_AS_ROOT
        if not self.program:
            return "bwrap is not installed: sudo apt install bubblewrap"
        trial = [self.program, *self._namespaces(), "--ro-bind", "/", "/", "--proc", "/proc", "true"]
        done = subprocess.run(trial, capture_output=True, text=True, check=False)
        return "" if done.returncode == 0 else f"bwrap fails here ({done.stderr.strip()})"

    def _namespaces(self) -> list[str]:
        ids = ["--unshare-user", "--uid", "1000", "--gid", "1000"]
        set_uid = bool(self.program) and bool(Path(self.program).stat().st_mode & 0o4000)
        return ["--unshare-all", *([] if set_uid else ids), "--die-with-parent", "--new-session"]

    def _as_init(self, tools: Path) -> Path:
        """Return a link to bwrap that is named "init", the name that commands see for their pid 1."""
        link = tools / "init"
        if not link.is_symlink():
            link.symlink_to(self.program)
        return link

    def job(self, folder: BoxFolder, argv: list[str], cwd: str, env: dict[str, str]) -> dict[str, Any]:
        shown = [part for host, inside in folder.binds for part in ("--ro-bind", host, f"/{inside}")]
        # Bwrap follows links on the way to a mount point, up to the host's folders. A process in a box cannot replace a
        # mount point, but a folder above one, so these are mounts as well.
        above = sorted({f"/{inside.split('/')[0]}" for _, inside in folder.binds if "/" in inside})
        shown = [*(part for top in above for part in ("--tmpfs", top)), *shown]
        shown += [part for top in above for part in ("--remount-ro", top)]
        wrap = [
            str(self._as_init(folder.tools)), *self._namespaces(), "--hostname", HOSTNAME,
            "--bind", str(folder.root), "/", *shown,
            "--proc", "/proc", "--dev", "/dev", "--seccomp", str(FILTER_DESCRIPTOR), "--",
            # Started through a shell: unlike bwrap's, its exit code distinguishes a missing program from one that
            # may not be run.
            "/bin/sh", "-c", 'cd "$1" || exit 127; shift; exec "$@"', "sh", cwd, *argv,
        ]  # fmt: skip
        return {"argv": wrap, "cwd": "/", "env": env, "confine": None, "filter": True}


class Landlock:
    """Commands reach only the box's files and system folders, and no network. They still see other processes."""

    name = "landlock"
    features = _COMMON | {Feature.NO_NETWORK}
    capabilities = frozenset({Capability.HOST_FILES, Capability.SYSTEM_CALLS})

    @property
    def text(self) -> str:
        scope = "" if landlock.version() >= 6 else "; signals reach your own processes"
        return f"files of the box and system folders alone, no network; other processes are seen{scope}; grades nothing"

    def refusal(self) -> str:
        if os.geteuid() == 0:
            return _NOT_AS_ROOT
        if kernel.MACHINE not in ("x86_64", "aarch64"):
            return f"the deny-list does not know {kernel.MACHINE}"
        return (
            "" if landlock.version() else "the kernel has no Landlock: add landlock to its lsm= parameter (Linux 5.13)"
        )

    def job(self, folder: BoxFolder, argv: list[str], cwd: str, env: dict[str, str]) -> dict[str, Any]:
        read = [*SYSTEM, *(f"/etc/{name}" for name in _ETC_NAMES), "/proc", sys.base_prefix]
        write = [str(folder.root), *(f"/dev/{name}" for name in _DEVICES)]
        confine = {"read": [os.path.realpath(path) for path in read], "write": write}
        return {**_host_job(folder, argv, cwd, env), "confine": confine}


class Plain:
    """Commands are ordinary processes of the host, in the box's folder."""

    name = "plain"
    features = _COMMON
    capabilities: frozenset[Capability] = frozenset()
    text = "nothing keeps commands in: for code that you trust; grades nothing; only by sandbox.mode=plain"

    def refusal(self) -> str:
        return ""

    def job(self, folder: BoxFolder, argv: list[str], cwd: str, env: dict[str, str]) -> dict[str, Any]:
        return _host_job(folder, argv, cwd, env)


def _host_job(folder: BoxFolder, argv: list[str], cwd: str, env: dict[str, str]) -> dict[str, Any]:
    """Return the job of a command that sees the host's paths, but has its home and temporary folder in the box."""
    root = str(folder.root)
    moved = {"HOME": f"{root}{env['HOME']}", "TMPDIR": f"{root}/tmp", "PATH": f"{root}/bin-of-box:{env['PATH']}"}
    return {"argv": argv, "cwd": f"{root}{cwd}", "env": {**env, **moved}, "confine": None, "filter": False}
