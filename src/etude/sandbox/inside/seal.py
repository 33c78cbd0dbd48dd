"""Copies what a box wrote (an overlay's upper folder) into a layer, and names it by its content.

Deletions (whiteouts), opaque folders, links, modes, owners and times are kept: a box on the copy sees the same files.
"""

# Plain strings and descriptors instead of Path: this runs for every command of every box.
# ruff: noqa: PTH101, PTH115, PTH123

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_OPAQUE = "user.overlay.opaque"


def attempt(source: str, target: str) -> dict[str, Any]:
    """Copies and answers in JSON: the digest, or what went wrong (the half-made copy is removed)."""
    try:
        return {"digest": copy_layer(source, target)}
    except OSError as error:
        shutil.rmtree(target, ignore_errors=True)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return {"error": str(error), "kind": "disk_full" if full else "failed"}


def copy_layer(source: str, target: str) -> str:
    digest = hashlib.blake2b(digest_size=16)
    links: dict[int, str] = {}
    Path(target).mkdir()
    folders = [(source, target)]
    for path, entry in _walk(source, ""):
        info = entry.stat(follow_symlinks=False)
        goal = f"{target}/{path}"
        kind, content, extra = stat.S_IFMT(info.st_mode), b"", b""
        if info.st_nlink > 1 and info.st_ino in links and kind == stat.S_IFREG:
            os.link(links[info.st_ino], goal)
            content = b"=" + os.fsencode(links[info.st_ino].removeprefix(target))
        elif kind == stat.S_IFREG:
            content = _copy_file(entry.path, goal)
            links[info.st_ino] = goal
        elif kind == stat.S_IFDIR:
            Path(goal).mkdir()
            folders.append((entry.path, goal))
            if _OPAQUE in os.listxattr(entry.path):
                extra = os.getxattr(entry.path, _OPAQUE)
                os.setxattr(goal, _OPAQUE, extra)
        elif kind == stat.S_IFLNK:
            content = os.fsencode(os.readlink(entry.path))
            Path(goal).symlink_to(os.fsdecode(content))
        else:  # Whiteouts are character devices 0:0; fifos are copied; a socket has no meaning without its process.
            if kind == stat.S_IFSOCK:
                continue
            os.mknod(goal, info.st_mode, info.st_rdev)
        if kind not in (stat.S_IFDIR,):
            _keep_attributes(goal, info)
        _add(digest, path, info, content, extra)
    # Folders last and deepest first: writing into one changes its time.
    for old, new in reversed(folders):
        _keep_attributes(new, Path(old).lstat())
    return digest.hexdigest()


def _walk(folder: str, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        path = f"{prefix}{entry.name}"
        yield path, entry
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path, f"{path}/")


def _copy_file(source: str, target: str) -> bytes:
    content = hashlib.blake2b(digest_size=16)
    unlinked = os.open(source, os.O_RDONLY | os.O_NOFOLLOW)
    with open(unlinked, "rb") as old, open(target, "xb") as new:
        while chunk := old.read(1 << 20):
            content.update(chunk)
            new.write(chunk)
    return content.digest()


def _keep_attributes(path: str, info: os.stat_result) -> None:
    os.chown(path, info.st_uid, info.st_gid, follow_symlinks=False)
    if not stat.S_ISLNK(info.st_mode):
        os.chmod(path, stat.S_IMODE(info.st_mode))
    os.utime(path, ns=(info.st_mtime_ns, info.st_mtime_ns), follow_symlinks=False)


def _add(digest: Any, path: str, info: os.stat_result, content: bytes, extra: bytes) -> None:
    record = f"{path}\0{info.st_mode:o}\0{info.st_uid}\0{info.st_gid}\0{info.st_rdev}\0".encode(
        "utf-8", "surrogateescape"
    )
    for part in (record, content, extra):
        digest.update(len(part).to_bytes(8, "big") + part)
