"""The `host` base: the host's system folders, read-only, over a small generated tree; never home, var, run or ours.

The running interpreter appears at /opt/python whatever its place on the host, with the standard library alone.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

from etude.sandbox.inside.init import USERS
from etude.sandbox.inside.rootfs import HOSTNAME

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
PYTHON = "/opt/python"
PATH = f"{PYTHON}/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_COPIED = ("ld.so.cache", "services", "protocols", "os-release", "debian_version")


@dataclass(slots=True)
class HostBase:
    skeleton: str
    """Of the generated tree, relative to the store."""
    binds: list[tuple[str, str]] = field(default_factory=list)
    """(host folder or "store:" path, folder in the box)."""


def build_host_base(store: Path, outer_ids: list[int] | None) -> HostBase:
    """Makes (or finds, by content) the generated tree, and says what to bind over it."""
    links = {name: str(Path(name).readlink()) for name in SYSTEM if Path(name).is_symlink()}
    binds = [(name, name[1:]) for name in SYSTEM if Path(name).is_dir() and not Path(name).is_symlink()]
    files = _generated_files()
    alternatives = _links_below(Path("/etc/alternatives"))
    prefix, executable = Path(sys.base_prefix).resolve(), Path(sys.executable).resolve()
    inside = any(prefix.is_relative_to(name) for name in SYSTEM)

    facts = (2, sys.version, str(prefix), str(executable), outer_ids, links, binds, sorted(files.items()), alternatives)
    digest = hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest()
    folder = store / "base" / digest
    if not folder.is_dir():
        fresh = store / "base" / f".{digest}.{os.getpid()}"
        shutil.rmtree(fresh, ignore_errors=True)
        root = fresh / "root"
        _make_tree(root, [target for _, target in binds], files, {**links, **alternatives})
        _make_python(fresh if not inside else root / PYTHON[1:], executable, prefix, inside=inside)
        _give_away(root, outer_ids)
        try:
            fresh.rename(folder)
        except OSError:  # Another process was first; content decides the name, so it is the same.
            shutil.rmtree(fresh)
    if not inside:
        binds += _python_binds(prefix, f"store:base/{digest}")
    return HostBase(f"base/{digest}/root", binds)


def _generated_files() -> dict[str, bytes]:
    users = "".join(f"{name}:x:{uid}:{uid}::/home/{name}:/bin/sh\n" for name, uid in USERS.items())
    groups = "".join(f"{name}:x:{uid}:\n" for name, uid in USERS.items())
    files = {
        "passwd": f"root:x:0:0:root:/:/bin/sh\n{users}nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n".encode(),
        "group": f"root:x:0:\n{groups}nogroup:x:65534:\n".encode(),
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


def _links_below(folder: Path) -> dict[str, str]:
    """/etc/alternatives holds the goals of links such as /usr/bin/awk."""
    if not folder.is_dir():
        return {}
    return {str(path): str(path.readlink()) for path in sorted(folder.iterdir()) if path.is_symlink()}


def _make_tree(root: Path, mounts: list[str], files: dict[str, bytes], links: dict[str, str]) -> None:
    homes = [f"home/{name}" for name in USERS]
    for name in [*mounts, *homes, "etc/alternatives", "proc", "dev", "tmp", "run", "var/tmp", "work", PYTHON[1:]]:
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var/tmp"):
        (root / name).chmod(0o1777)
    for name, content in files.items():
        (root / "etc" / name).write_bytes(content)
    for name, goal in links.items():
        (root / name[1:]).symlink_to(goal)
    for path in [root, *root.rglob("*")]:
        if not path.is_symlink() and not path.stat().st_mode & 0o1000:
            path.chmod(0o755 if path.is_dir() else 0o644)


def _make_python(folder: Path, executable: Path, prefix: Path, *, inside: bool) -> None:
    """The names `python` and `python3`. An interpreter from elsewhere is copied with its library path set to its place
    in the box: the path it was built with does not exist there."""
    names = folder / "bin"
    names.mkdir(parents=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if inside:
        (names / version).symlink_to(executable)
    else:
        (folder / "empty").mkdir()
        built, here = f"{prefix}/lib\0".encode(), f"{PYTHON}/lib\0".encode()
        program = executable.read_bytes()
        if len(here) <= len(built):
            program = program.replace(built, here.ljust(len(built), b"\0"))
        (names / version).write_bytes(program)
        (names / version).chmod(0o755)
        for path in (folder, names, folder / "empty"):
            path.chmod(0o755)
    for name in ("python", "python3"):
        (names / name).symlink_to(version)


def _python_binds(prefix: Path, made: str) -> list[tuple[str, str]]:
    target = PYTHON[1:]
    binds = [(str(prefix), target), (f"{made}/bin", f"{target}/bin")]
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(prefix), "platbase": str(prefix)}))
    if packages.is_dir() and packages.is_relative_to(prefix):
        binds.append((f"{made}/empty", f"{target}/{packages.relative_to(prefix)}"))
    return binds


def _give_away(root: Path, outer_ids: list[int] | None) -> None:
    """Where boxes have their own range of ids: the tree is their root's, homes and /work are their users'."""
    if outer_ids is None:
        return
    owners = dict(zip((root, root / "home/agent", root / "home/grader"), outer_ids, strict=True))
    owners[root / "work"] = outer_ids[1]
    for path in [root, *root.rglob("*")]:
        owner = owners.get(path, outer_ids[0])
        os.chown(path, owner, owner, follow_symlinks=False)
