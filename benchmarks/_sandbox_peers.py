"""Peers of the sandbox benchmark: podman with runc in its fastest configuration, and bubblewrap as a lower bound."""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import tarfile
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

BWRAP = """
    bwrap --unshare-all --die-with-parent --new-session --ro-bind /usr /usr --symlink usr/bin /bin
    --symlink usr/lib /lib --symlink usr/lib64 /lib64 --proc /proc --dev /dev --tmpfs /tmp --tmpfs /work
    --chdir /work /bin/true
""".split()  # noqa: SIM905 - as one would type it
_WARM = 3


def p50_ms(command: list[str], runs: int) -> float:
    taken = []
    for run in range(runs + _WARM):
        begun = time.perf_counter()
        spawn(command)
        if run >= _WARM:
            taken.append(time.perf_counter() - begun)
    return 1000 * statistics.median(taken)


def per_second(command: list[str], runs: int, at_once: int = 4) -> float:
    with ThreadPoolExecutor(at_once) as pool:
        begun = time.perf_counter()
        list(pool.map(spawn, [command] * runs))
        return runs / (time.perf_counter() - begun)


def spawn(command: list[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def bwrap_p50_ms() -> float | None:
    return p50_ms(BWRAP, 60) if shutil.which("bwrap") else None


@contextmanager
def podman(place: Path) -> Iterator[list[str] | None]:
    """Yield a command that creates, runs and removes a container; None if podman is missing or cannot run here."""
    settings = tomllib.loads(Path(__file__).with_name("_sandbox_podman.toml").read_text(encoding="utf-8"))
    if not shutil.which(settings["program"]):
        print("podman is not installed (apt-get install podman runc): not measured")
        yield None
        return
    words = {"place": str(place), "tar": str(place / "root.tar")}
    _pack_true(place / "root.tar")

    def command(part: str) -> list[str]:
        return [settings["program"], *(word.format(**words) for word in (*settings["options"], *settings[part]))]

    try:
        spawn(command("load"))
        spawn(command("life"))
    except AssertionError as error:
        print(f"podman does not run here, so it is not measured: {error}")
        yield None
        return
    try:
        yield command("life")
    finally:
        # Unmount what podman has mounted before the folder is removed.
        with_options = [settings["program"], *(word.format(**words) for word in settings["options"])]
        subprocess.run([*with_options, "rmi", "--force", "peer"], capture_output=True, check=False)
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
            if line.split()[1].startswith(f"{place}/"):
                subprocess.run(["umount", line.split()[1]], capture_output=True, check=False)


def _pack_true(tar: Path) -> None:
    """Write a root file system that holds only /bin/true and the libraries it needs."""
    needed = subprocess.run(["ldd", "/bin/true"], capture_output=True, text=True, check=True).stdout
    with tarfile.open(tar, "w") as out:
        for name in ("/bin/true", *re.findall(r"(/\S+) \(", needed)):
            out.add(Path(name).resolve(), name)
