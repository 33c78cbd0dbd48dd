"""Container engines of the tests' own, podman and Docker: each on a unix socket, with all its files in one folder."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import httpx
import psutil

from etude.sandbox import SandboxUnavailable
from etude.sandbox.oci.api import Engine

_PATIENCE = 60.0
_PREFIX = "etude-oci-"
_MEMORY = "/dev/shm"
_PLACE = _MEMORY if os.environ.get("PYTEST_DEBUG_TEMPROOT", "").startswith(_MEMORY) else "/tmp"
"""As for all files of the tests: engines write databases, and wait for the disk each time."""


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _absent(*programs: str) -> str:
    return ", ".join(name for name in programs if not shutil.which(name, path=_path()))


class OwnEngine:
    """Its folder's name tells its kind and the number of the process that uses it, with which its service ends."""

    kind = ""
    archive_forms: tuple[str, ...] = ()
    """In which it can save an image."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.endpoint = f"unix://{folder}/engine.sock"
        self.env = {"PATH": _path(), "HOME": str(folder), "TMPDIR": str(folder)}
        self.process: subprocess.Popen[bytes] | None = None
        self.noted = folder / "noted"
        """Written by the runtime "noting", which is runc otherwise: another one than the default, on every machine."""
        runtime = folder / "noting"
        runtime.write_text(f'#!/bin/sh\necho "$@" >>{self.noted}\nexec runc "$@"\n')
        runtime.chmod(0o755)

    @classmethod
    def missing(cls) -> str:
        """What it needs and this machine or user lacks; empty where it can run."""
        raise NotImplementedError

    def service(self) -> list[str]:
        raise NotImplementedError

    def save(self, reference: str, form: str, archive: Path) -> None:
        raise NotImplementedError

    def empty(self) -> None:
        """Removes every container and mount, and ends the service."""
        raise NotImplementedError

    def start(self) -> None:
        (self.folder / "engine.sock").unlink(missing_ok=True)
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self.service()],
                cwd=self.folder,  # Where it runs, it notes that a container was out of memory.
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + _PATIENCE
        while True:
            with contextlib.suppress(SandboxUnavailable):
                Engine(self.endpoint)
                return
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.kind} did not start: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        """The service alone, at once, as a crash would; what it knows of its containers stays."""
        assert self.process is not None
        helpers = psutil.Process(self.process.pid).children()
        self.process.kill()
        self.process.wait()
        for helper in helpers:
            with contextlib.suppress(psutil.NoSuchProcess):
                helper.kill()
        # One that is ending still counts as running for the next service.
        assert not psutil.wait_procs(helpers, timeout=_PATIENCE)[1]

    def end_service(self) -> None:
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()
            self.process = None

    def remove(self) -> None:
        """Every container, mount, cgroup and file."""
        self.empty()
        shutil.rmtree(self.folder)


class Podman(OwnEngine):
    """As root, or rootless: then its containers have the ids that the host lends to this user."""

    kind = "podman"
    archive_forms = ("oci-archive", "docker-archive")

    # The default ulimits of podman are higher than an ordinary login may set.
    _CONFIG = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]
log_driver = "none"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "none"
[engine.runtimes]
noting = ["{folder}/noting"]
"""
    _REGISTRIES = """
unqualified-search-registries = []
[[registry]]
location = "127.0.0.1"
insecure = true
"""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "containers.conf").write_text(self._CONFIG.format(folder=folder))
        (folder / "registries.conf").write_text(self._REGISTRIES)
        self.env |= {
            "XDG_RUNTIME_DIR": str(folder),
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_REGISTRIES_CONF": str(folder / "registries.conf"),
        }

    @classmethod
    def missing(cls) -> str:
        if os.geteuid() == 0:
            return _absent("podman", "runc", "conmon")
        user = pwd.getpwuid(os.geteuid()).pw_name
        lent = all(f"{user}:" in Path(file).read_text() for file in ("/etc/subuid", "/etc/subgid"))
        return _absent("podman", "runc", "conmon", "newuidmap") or ("" if lent else f"ids of {user} in /etc/subuid")

    def podman(self, *arguments: str) -> list[str]:
        places = {"--root": "root", "--runroot": "run", "--tmpdir": "tmp"}
        folders = [f"{option}={self.folder / name}" for option, name in places.items()]
        # Rootless, podman would take the driver that copies every layer.
        options = ("--storage-driver=overlay", "--runtime=runc", "--cgroup-manager=cgroupfs", "--events-backend=none")
        return ["podman", *folders, *options, *arguments]

    def service(self) -> list[str]:
        return self.podman("system", "service", "--time=0", self.endpoint)

    def run(self, *arguments: str) -> str:
        done = subprocess.run(self.podman(*arguments), env=self.env, capture_output=True, text=True, check=True)
        return done.stdout

    def save(self, reference: str, form: str, archive: Path) -> None:
        self.run("save", "--format", form, "--output", str(archive), reference)

    def empty(self) -> None:
        self.end_service()
        self.run("rm", "--all", "--force", "--ignore", "--time=0")
        self.run("system", "reset", "--force")
        # Rootless, a service is two processes, of which one outlives the other, and a third keeps their user namespace.
        for process in psutil.process_iter(["cmdline"]):
            if f"--root={self.folder}/root" in (process.info["cmdline"] or ()):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()

    def remove(self) -> None:
        super().remove()
        if not any(kind is Podman for _, kind, _ in _folders()):
            _remove_cgroups("libpod_parent/conmon", "libpod_parent")


class Docker(OwnEngine):
    """In a mount namespace of its own, where /run and /etc/docker are folders of its own too."""

    kind = "docker"
    archive_forms = ("docker-archive",)

    _IN_OWN_PLACES = 'mount --bind "$1/run" /run && mount --bind "$1/etc" /etc/docker && shift && exec "$@"'

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for name in ("run", "etc"):
            (folder / name).mkdir(exist_ok=True)

    @classmethod
    def missing(cls) -> str:
        return _absent("dockerd", "containerd", "runc") or ("" if os.geteuid() == 0 else "root")

    def service(self) -> list[str]:
        places = {"--data-root": "data", "--exec-root": "exec", "--pidfile": "pid"}
        return [
            "unshare", "--mount", "sh", "-c", self._IN_OWN_PLACES, "sh", str(self.folder),
            "dockerd", *(f"{option}={self.folder / name}" for option, name in places.items()),
            f"--host={self.endpoint}", f"--cgroup-parent=/{self.folder.name}",
            "--exec-opt=native.cgroupdriver=cgroupfs", f"--add-runtime=noting={self.folder}/noting",
            "--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-masq=false",
        ]  # fmt: skip

    def client(self) -> httpx.Client:
        return httpx.Client(transport=httpx.HTTPTransport(uds=f"{self.folder}/engine.sock"), base_url="http://engine")

    def save(self, reference: str, form: str, archive: Path) -> None:
        assert form in self.archive_forms
        with self.client() as client:
            archive.write_bytes(client.get(f"/images/{reference}/get").raise_for_status().content)

    def empty(self) -> None:
        # What a killed service has left is ended by the next one that is started over it.
        if self.process is None or self.process.poll() is not None:
            self.start()
        with self.client() as client:
            for container in client.get("/containers/json", params={"all": "true"}).raise_for_status().json():
                client.delete(
                    f"/containers/{container['Id']}", params={"force": "true", "v": "true"}, timeout=_PATIENCE
                )
        self.end_service()

    def remove(self) -> None:
        super().remove()
        _remove_cgroups(self.folder.name)


ENGINES: dict[str, type[OwnEngine]] = {kind.kind: kind for kind in (Podman, Docker)}
Kind = TypeVar("Kind", bound=OwnEngine)


@contextlib.contextmanager
def own_engine(kind: type[Kind]) -> Iterator[Kind]:
    for left, its_kind, pid in _folders():
        if not psutil.pid_exists(pid):
            its_kind(left).remove()
    # Short: podman wants its folders' paths to have 50 characters at most, a socket's path has at most 107.
    engine = kind(Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{kind.kind}-{os.getpid()}-", dir=_PLACE)))
    try:
        engine.start()
        yield engine
    finally:
        engine.remove()


def _folders() -> Iterator[tuple[Path, type[OwnEngine], int]]:
    """Of all engines like this, also those that killed runs have left: whose each is."""
    for folder in Path(_PLACE).glob(f"{_PREFIX}*-*-*"):
        *_, kind, pid, _ = folder.name.split("-")
        if kind in ENGINES and folder.stat().st_uid == os.geteuid():
            yield folder, ENGINES[kind], int(pid)


def _remove_cgroups(*names: str) -> None:
    """Engines keep the cgroups above their containers for ever; one that somebody uses cannot be removed."""
    for above in (Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").iterdir()):
        for name in names:
            with contextlib.suppress(OSError):
                (above / name).rmdir()
