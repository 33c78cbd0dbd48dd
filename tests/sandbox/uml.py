"""A second kernel for the tests: user-mode Linux, a whole Linux that runs as an ordinary process and needs no KVM.

Its root is this machine's files, read-only; what it writes goes to a disk of its own that is thrown away. It has
cgroups of version 2 alone, and is older than 6.6: its tmpfs keeps no user attributes.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import string
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

_SOURCE = Path(__file__).parents[2]
_MODULES = Path("/usr/lib/uml/modules")
_NEEDED = ("overlay", "veth")
_TOOLS = ("linux.uml", "mkfs.ext4", "busybox", "cc")
_REGISTERS = Path(__file__).with_name("uml_registers.c")
_QUIET = ["-x", "-v", "--tb=short", "--color=no", "-p", "no:cacheprovider"]
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_PATIENCE = 800.0
"""Seconds. Its system calls take ten times as long as this machine's, and it has one core."""
_BEGAN, _ENDED = "-- began --", "-- ended:"
_INIT = string.Template("""\
{
export PATH=$path HOME=/root PYTHONDONTWRITEBYTECODE=1
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t cgroup2 cgroup /sys/fs/cgroup
mkdir /dev/shm /dev/pts
mount -t tmpfs shm /dev/shm
mount -t devpts pts /dev/pts
mount -t tmpfs run /run
for module in $modules; do busybox insmod $$module; done
busybox ifconfig lo up
$keep
mount -t ext4 /dev/ubda /tmp
chmod 1777 /tmp
$show
cd $source
echo $began
(
$commands
)
echo $ended $$?
sync
busybox poweroff -f
}
""")
"""Read as a whole before its first step: a mount may hide it."""
_HAND_ON = """\
top=/sys/fs/cgroup own=/sys/fs/cgroup/user/session
mkdir -p $own
for name in memory pids cpu; do
  for folder in $top $top/user; do echo +$name >$folder/cgroup.subtree_control; done
done
for file in '' cgroup.procs cgroup.threads cgroup.subtree_control; do
  for folder in {folders}; do chown 65534 $folder/$file; done
done
echo 0 >$own/cgroup.procs
"""
SYSTEMD_SCOPE = _HAND_ON.format(folders="$own")
"""Hands a cgroup to nobody as systemd does it for `Delegate=yes`, and goes there."""
BELOW_THE_USERS_SYSTEMD = _HAND_ON.format(folders="$own $top/user")
"""The same where what lies around it belongs to nobody, too."""


@dataclass(frozen=True, slots=True)
class Ended:
    code: int | None
    """None: it did not come to its end."""
    said: str


needs_uml = pytest.mark.skipif(
    any(shutil.which(tool, path=_PATH) is None for tool in _TOOLS) or not _MODULES.is_dir(),
    reason="needs user-mode Linux: see scripts/test-tools.sh",
)


def run_in_uml(commands: str, *, timeout: float = _PATIENCE) -> Ended:
    """Boots it (about 4 s), runs a shell's commands there as root, in this repository, and ends it."""
    scratch = Path(tempfile.mkdtemp(prefix="etude-uml-"))
    try:
        disk, init, registers = scratch / "disk", scratch / "init", scratch / "registers.so"
        with disk.open("wb") as file:
            file.truncate(4 << 30)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(disk)], env={"PATH": _PATH}, check=True)
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", registers, _REGISTERS], env={"PATH": _PATH}, check=True)
        init.write_text(f"#!/bin/sh\n{_init(commands)}")
        init.chmod(0o755)
        words = ["mem=2G", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "quiet", "loglevel=1"]
        ends = [f"ubd0={disk}", f"init={init}", f"uml_dir={scratch}", "con=null", "con0=fd:0,fd:1", "con1=null"]
        with subprocess.Popen(
            ["linux.uml", *words, *ends],
            env={"PATH": _PATH, "LD_PRELOAD": str(registers)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as kernel:
            try:
                console, _ = kernel.communicate(timeout=timeout)
            except BaseException as error:
                os.killpg(kernel.pid, signal.SIGKILL)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                console, _ = kernel.communicate()
    finally:
        shutil.rmtree(scratch)
    said, ended, code = console.partition(_BEGAN)[2].rpartition(_ENDED)
    return Ended(int(code.split()[0]), said) if ended else Ended(None, console)


def _init(commands: str) -> str:
    """Its own /tmp lies over this machine's: what we need from there is shown again."""
    needed = {_SOURCE, Path(sys.prefix), Path(sys.base_prefix)}
    hidden = [shlex.quote(str(path)) for path in sorted(needed) if path.is_relative_to("/tmp")]
    keep = [f"mkdir /run/{number}; mount --bind {path} /run/{number}" for number, path in enumerate(hidden)]
    show = [f"mkdir -p {path}; mount --bind /run/{number} {path}" for number, path in enumerate(hidden)]
    return _INIT.substitute(
        path=_PATH,
        modules=" ".join(str(path) for name in _NEEDED for path in _MODULES.rglob(f"{name}.ko")),
        keep="\n".join(keep),
        show="\n".join(show),
        source=shlex.quote(str(_SOURCE)),
        began=_BEGAN,
        ended=_ENDED,
        commands=commands,
    )


def pytest_in_uml(files: list[str], *, options: list[str] | None = None) -> str:
    """Runs test files of this folder there as root; fails with what they said, and with those that were skipped."""
    names = [f"tests/sandbox/{name}" for name in files]
    words = [sys.executable, "-m", "pytest", *_QUIET, *(options or []), *names]
    return _passed(run_in_uml(shlex.join(words)))


def pytest_as_nobody_in_uml(files: list[str], *, before: str = "", options: list[str] | None = None) -> str:
    """The same as an ordinary user, after what root does `before`."""
    names = [f"tests/sandbox/{name}" for name in files]
    words = ["-m", "pytest", *_QUIET, *(options or [])]
    code = (
        "import sys\nfrom tests.sandbox.as_nobody import run_as_nobody\n"
        f"ended = run_as_nobody({words!r}, {names!r}, timeout={_PATIENCE})\n"
        "print(ended.stdout, ended.stderr)\nsys.exit(ended.returncode)\n"
    )
    return _passed(run_in_uml(f"{before}\n{shlex.join([sys.executable, '-c', code])}"))


def _passed(ended: Ended) -> str:
    assert ended.code == 0, ended.said[-5000:]
    assert " passed" in ended.said, ended.said[-5000:]
    return ended.said
