"""Makes an image of a minimal Debian system with debootstrap.

debootstrap needs root rights over the folder it fills. For an ordinary user, it runs in the store process, which is
root over the user's subordinate ids. The result is imported like any other root file system.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from etude.sandbox.apt import SOURCES, apt_addresses, proxy_variables
from etude.sandbox.contract import ImageError, RequestRefused, SandboxUnavailable
from etude.sandbox.images.importing import import_root
from etude.sandbox.images.oci import Say, quiet
from etude.sandbox.images.owners import remove_tree
from etude.sandbox.images.store import ImageStore
from etude.sandbox.images.store_process import in_store_process

_SUITE = re.compile(r"[a-z][a-z0-9.-]*")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]*")
_MIRROR = re.compile(r"(https?|file)://[^\s]+")
# debootstrap ends with this process, together with everything that it has started and mounted.
_APART = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child"]
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
# Files that are left by the installation and are not part of the system: files that differ each time, files that apt
# can fetch again, and devices, since each box has its own.
_LEFTOVERS = ("var/log/bootstrap.log", "var/log/dpkg.log", "var/log/alternatives.log", "var/log/apt", "debootstrap")
_EMPTIED = ("dev", "var/cache/apt/archives", "var/lib/apt/lists", "var/cache/debconf")


@in_store_process
def bootstrap(store: ImageStore, suite: str, *, mirror: str = "", include: Sequence[str] = (), say: Say = quiet) -> str:
    """Make an image of a minimal Debian: the suite's base packages and `include`. Takes a minute or two."""
    if not _SUITE.fullmatch(suite):
        raise RequestRefused(f"suite {suite!r}: expected such as bookworm")
    for package in include:
        if not _PACKAGE.fullmatch(package):
            raise RequestRefused(f"package {package!r}: expected a Debian package's name, such as git")
    mirror = mirror or host_mirror()
    if not _MIRROR.fullmatch(mirror):
        raise RequestRefused(f"mirror {mirror!r}: expected an address such as https://mirror.example/debian")
    program = shutil.which("debootstrap", path=_PATH)
    if program is None:
        raise SandboxUnavailable("debootstrap is not installed: apt-get install debootstrap")
    if os.geteuid() != 0:
        raise SandboxUnavailable(
            "debootstrap makes files of many owners, for which you need subordinate ids (see `etude sandbox doctor`): "
            "else run this with sudo, or pull an image (etude sandbox images pull debian:stable-slim)"
        )
    options = ["--variant=minbase", *([f"--include={','.join(include)}"] if include else [])]
    packages = f" with {', '.join(include)}" if include else ""
    with store.fresh("debootstrap") as tree:
        _run(store, [*_APART, program, *options, suite, str(tree), mirror], say)
        _tidy(tree)
        return import_root(store, tree, f"debootstrap {suite}{packages} from {mirror}", say)


def host_mirror(sources: Path = SOURCES) -> str:
    """Return the Debian mirror that this host fetches its own packages from. Raises RequestRefused if there is none."""
    for address in apt_addresses(sources):
        if address.endswith("/debian"):
            return address
    raise RequestRefused(
        "this host's apt has no mirror of Debian: name one with --mirror https://mirror.example/debian"
    )


def _run(store: ImageStore, command: list[str], say: Say) -> None:
    last: deque[str] = deque(maxlen=5)
    environment = {"PATH": _PATH, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    if store.ids and store.ids.subordinate:
        environment["container"] = "lxc"  # Makes debootstrap use the host's devices where none can be made.
    environment |= proxy_variables()
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
    ) as process:
        try:
            assert process.stdout is not None
            _follow(process.stdout, last, say)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise ImageError(f"debootstrap failed (code {process.returncode}): {' | '.join(last)}")


def _follow(output: IO[str], last: deque[str], say: Say) -> None:
    """Keep debootstrap's latest lines of output in `last`. Pass only the first line of each kind ("Retrieving", ...) to
    `say`, since every package prints all kinds."""
    kinds: set[str] = set()
    for line in output:
        text = line.strip().removeprefix("I: ")
        if text:
            last.append(text)
            kind = text.split()[0]
            if line.startswith("I: ") and kind not in kinds:
                kinds.add(kind)
                say(text)


def _tidy(tree: Path) -> None:
    for name in _LEFTOVERS:
        remove_tree(tree / name)
    for name in _EMPTIED:
        for path in (tree / name).glob("*"):
            remove_tree(path)
