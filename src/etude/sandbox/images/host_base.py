"""Generates the lowest layer of every box: a tree of a few folders and files.

For the `host` base, the host's system folders are mounted over the tree, read-only. The host's /home, /var and /run and
Étude's own folders are never mounted. For an image with its own root file system, the tree holds only a few files that
the image may lack.

The running Python interpreter appears at /opt/python, wherever it is on the host, with the standard library only.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from etude.sandbox.images.full_disk import full_disk_as_error
from etude.sandbox.images.image import EMPTY, HOST
from etude.sandbox.inside.users import USERS
from etude.sandbox.inside.zygote_root import HOSTNAME

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
PYTHON = "/opt/python"
PATH = f"{PYTHON}/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_NEEDED = ("hosts", "hostname", "resolv.conf")
"""Files in /etc that container engines provide if an image lacks them. The generated tree below an image with its own
root file system has only these files."""
_COPIED = ("ld.so.cache", "services", "protocols", "os-release", "debian_version")


@dataclass(slots=True)
class Bases:
    """The generated trees that are the lowest layers of boxes, and the mounts over the tree of the base HOST."""

    skeletons: dict[str, str]
    """Name of a base (HOST or EMPTY) -> path of its generated tree, relative to the store."""
    binds: list[tuple[str, str]] = field(default_factory=list)
    """Mounts over the tree of the base HOST (the host's system folders), as pairs (source, folder in the box). A source
    is a path on the host; one that starts with "store:" is relative to the store."""


def build_bases(store: Path, owner: str | None) -> Bases:
    """Make the trees that are the lowest layers of boxes, or reuse existing ones with the same content.

    `owner` is the name of the boxes' id range. Each range has its own trees, since the process that makes boxes (the
    zygote) changes their owners to ids of that range. With None, the trees keep belonging to the user who runs this
    process."""
    links = {name: str(Path(name).readlink()) for name in SYSTEM if Path(name).is_symlink()}
    binds = [(name, name[1:]) for name in SYSTEM if Path(name).is_dir() and not Path(name).is_symlink()]
    files = _generated_files()
    dotfiles = {path.name: path.read_bytes() for path in sorted(Path("/etc/skel").glob(".*")) if path.is_file()}
    alternatives = _links_below(Path("/etc/alternatives"))
    prefix, executable = Path(sys.base_prefix).resolve(), Path(sys.executable).resolve()
    inside = any(prefix.is_relative_to(name) for name in SYSTEM)

    def make_host(fresh: Path) -> None:
        root = fresh / "root"
        homes = [f"home/{name}" for name in USERS]
        _make_tree(
            root,
            [*(target for _, target in binds), *homes, "etc/alternatives", "run", "var/log", "work", PYTHON[1:]],
            files,
        )
        for name, goal in {**links, **alternatives, "/etc/localtime": "/usr/share/zoneinfo/Etc/UTC"}.items():
            (root / name[1:]).symlink_to(goal)
        for home in homes:
            for name, content in dotfiles.items():
                (root / home / name).write_bytes(content)
                (root / home / name).chmod(0o644)
        _make_python(fresh / "python", executable, prefix, inside=inside)

    needed = {name: content for name, content in files.items() if name in _NEEDED}
    facts = (
        5,
        sys.version,
        str(prefix),
        str(executable),
        owner,
        links,
        binds,
        sorted(files.items()),
        alternatives,
        dotfiles,
    )
    host = _made_once(store, facts, make_host)
    empty = _made_once(
        store, (3, owner, sorted(needed.items())), lambda fresh: _make_tree(fresh / "root", ["etc"], needed)
    )
    made = f"store:{host}/python"
    binds += [(made, PYTHON[1:])] if inside else _python_binds(prefix, made)
    return Bases({HOST: f"{host}/root", EMPTY: f"{empty}/root"}, binds)


def _made_once(store: Path, facts: tuple[object, ...], make: Callable[[Path], None]) -> str:
    """Return the path, relative to the store, of a folder that `make` has filled. The folder is named by the digest of
    `facts`, which are all inputs of `make`, and made only if it does not exist."""
    digest = hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest()
    folder = store / "base" / digest
    if not folder.is_dir():
        fresh = store / "base" / f".{digest}.{os.getpid()}"
        shutil.rmtree(fresh, ignore_errors=True)
        try:
            with full_disk_as_error(store):
                make(fresh)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        try:
            fresh.rename(folder)
        except (
            OSError
        ):  # Another process made it first. Both have the same content, since the name is a digest of the inputs.
            shutil.rmtree(fresh)
    return f"base/{digest}"


def _generated_files() -> dict[str, bytes]:
    shell = "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"
    users = "".join(f"{name}:x:{uid}:{uid}::/home/{name}:{shell}\n" for name, uid in USERS.items())
    groups = "".join(f"{name}:x:{uid}:\n" for name, uid in USERS.items())
    nobody = "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin"
    files = {
        "passwd": f"root:x:0:0:root:/:/bin/sh\n{_system_entries('passwd')}{users}{nobody}\n".encode(),
        "group": f"root:x:0:\n{_system_entries('group')}{groups}nogroup:x:65534:\n".encode(),
        "machine-id": hashlib.blake2b(b"box", digest_size=16).hexdigest().encode() + b"\n",
        "timezone": b"Etc/UTC\n",
        "hosts": f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost\n".encode(),
        "hostname": f"{HOSTNAME}\n".encode(),
        "resolv.conf": b"",
        "nsswitch.conf": b"passwd: files\ngroup: files\nhosts: files\n",
        "shells": b"/bin/sh\n/bin/bash\n",
    }
    for name in _COPIED:
        source = Path("/etc", name)
        if source.is_file() and os.access(source, os.R_OK):
            files[name] = source.read_bytes()
    return files


def _system_entries(name: str) -> str:
    """Return the lines of the host's system users or groups for the box's /etc/passwd or /etc/group (`name`), so that
    owners of files in the mounted system folders have names. Homes, passwords and members are left out."""
    entries = ""
    for line in Path("/etc", name).read_text().splitlines():
        fields = line.split(":")
        if len(fields) >= 4 and fields[2].isdecimal() and 0 < int(fields[2]) < 1000 and fields[0] not in USERS:
            tail = f"{fields[3]}:::/usr/sbin/nologin" if name == "passwd" else ""
            entries += f"{fields[0]}:x:{fields[2]}:{tail}\n"
    return entries


def _links_below(folder: Path) -> dict[str, str]:
    """Return the links in a folder: path -> target. It is used for /etc/alternatives, whose links are the targets of
    links such as /usr/bin/awk."""
    if not folder.is_dir():
        return {}
    return {str(path): str(path.readlink()) for path in sorted(folder.iterdir()) if path.is_symlink()}


def _make_tree(root: Path, folders: list[str], files: dict[str, bytes]) -> None:
    """Make a tree of `folders` with `files` (name -> content) in its /etc. Every file and folder gets a fixed mode."""
    for name in [*folders, "etc", "proc", "dev", "tmp", "var/tmp"]:
        (root / name).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (root / "etc" / name).write_bytes(content)
    for path in [root, *root.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    for name in ("tmp", "var/tmp"):
        (root / name).chmod(0o1777)


def _make_python(folder: Path, executable: Path, prefix: Path, *, inside: bool) -> None:
    """Make `python` and `python3` in `folder`/bin: links to the interpreter if it lies in a system folder (`inside`),
    else a copy. In the copy, the path of its libraries (`prefix`/lib) is overwritten by that in a box, if it fits."""
    names, empty = folder / "bin", folder / "empty"
    for path in (folder, names, empty):
        path.mkdir()
        path.chmod(0o755)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if inside:
        (names / version).symlink_to(executable)
    else:
        built, here = f"{prefix}/lib\0".encode(), f"{PYTHON}/lib\0".encode()
        program = executable.read_bytes()
        if len(here) <= len(built):
            program = program.replace(built, here.ljust(len(built), b"\0"))
        (names / version).write_bytes(program)
        (names / version).chmod(0o755)
    for name in ("python", "python3"):
        (names / name).symlink_to(version)


def _python_binds(prefix: Path, made: str) -> list[tuple[str, str]]:
    """Return the mounts for an interpreter outside the system folders: its `prefix`, and over that, `made`/bin (see
    _make_python) and an empty folder that hides its installed packages."""
    target = PYTHON[1:]
    binds = [(str(prefix), target), (f"{made}/bin", f"{target}/bin")]
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(prefix), "platbase": str(prefix)}))
    if packages.is_dir() and packages.is_relative_to(prefix):
        binds.append((f"{made}/empty", f"{target}/{packages.relative_to(prefix)}"))
    return binds
