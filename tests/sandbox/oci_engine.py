"""A container engine of the tests' own: podman over runc on a unix socket, with all its files in one folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from etude.sandbox import SandboxUnavailable
from etude.sandbox.oci.api import Engine

# The default ulimits of podman are higher than an ordinary login may set.
_CONFIG = """
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=8192:8192"]
log_driver = "none"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "none"
"""
_REGISTRIES = """
unqualified-search-registries = []
[[registry]]
location = "127.0.0.1"
insecure = true
"""
_START_SECONDS = 20.0
_PREFIX = "etude-oci-"


def engine_is_installed() -> bool:
    return os.geteuid() == 0 and all(shutil.which(name, path=_path()) for name in ("podman", "runc", "conmon"))


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


class OwnEngine:
    """Its folder's name begins with the number of the process that uses it, with which its service ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.endpoint = f"unix://{folder}/engine.sock"
        (folder / "containers.conf").write_text(_CONFIG)
        (folder / "registries.conf").write_text(_REGISTRIES)
        self.env = {
            "PATH": _path(),
            "HOME": str(folder),
            "TMPDIR": str(folder),
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_REGISTRIES_CONF": str(folder / "registries.conf"),
        }
        self.process: subprocess.Popen[bytes] | None = None

    def podman(self, *arguments: str) -> list[str]:
        places = {"--root": "root", "--runroot": "run", "--tmpdir": "tmp"}
        folders = [f"{option}={self.folder / name}" for option, name in places.items()]
        return ["podman", *folders, "--runtime=runc", "--cgroup-manager=cgroupfs", "--events-backend=none", *arguments]

    def start(self) -> None:
        (self.folder / "engine.sock").unlink(missing_ok=True)
        service = self.podman("system", "service", "--time=0", self.endpoint)
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *service],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(SandboxUnavailable):
                Engine(self.endpoint)
                return
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"podman did not start: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)

    def run(self, *arguments: str) -> str:
        done = subprocess.run(self.podman(*arguments), env=self.env, capture_output=True, text=True, check=True)
        return done.stdout

    def kill(self) -> None:
        """The service alone, at once, as a crash would; its containers go on."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def remove(self) -> None:
        """Every container, mount, cgroup and file."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
        self.run("rm", "--all", "--force", "--ignore", "--time=0")
        self.run("system", "reset", "--force")
        shutil.rmtree(self.folder)
        if not _folders():
            _remove_parent_cgroups()


@contextlib.contextmanager
def own_engine() -> Iterator[OwnEngine]:
    for left, pid in _folders().items():
        if not psutil.pid_exists(pid):
            OwnEngine(left).remove()
    # Short: the path of a socket has at most 107 characters.
    engine = OwnEngine(Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir="/tmp")))
    try:
        engine.start()
        yield engine
    finally:
        engine.remove()


def _folders() -> dict[Path, int]:
    """Of all engines like this, also those that killed runs have left: whose each is."""
    return {folder: int(folder.name.split("-")[-2]) for folder in Path("/tmp").glob(f"{_PREFIX}*-*")}


def _remove_parent_cgroups() -> None:
    """podman keeps the cgroup above its containers for ever; one that somebody uses cannot be removed."""
    for above in (Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").iterdir()):
        for cgroup in ("libpod_parent/conmon", "libpod_parent"):
            with contextlib.suppress(OSError):
                (above / cgroup).rmdir()
