"""Merges a chain of layers into one layer that shows the same files, no matter which layers lie below.

Files are hard-linked, not copied. Layers never change, so sharing is safe, and a merge takes no disk space.
"""

from __future__ import annotations

import errno
import os
import queue
import shutil
import stat
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from etude.sandbox.images.stack import find_in, make_opaque, make_whiteout

_ORIGIN = "user.overlay.origin"


def merge_layers(layers: Sequence[Path], target: Path, check: Callable[[], None] = lambda: None) -> None:
    """Merge the layers (topmost first) into the new folder `target`. `check` may raise to stop the merge."""
    target.mkdir(mode=0o700)
    todo: list[tuple[Sequence[Path], Path]] = [(layers, target)]
    done: list[tuple[os.stat_result, Path]] = []
    while todo:
        check()
        folders, path = todo.pop()
        todo += _merge(folders, path)
        done.append((folders[0].lstat(), path))
    # Set attributes of the content before those of its folder: writing into a folder changes the folder's time, or may
    # be forbidden by its mode.
    for info, path in reversed(done):
        if (info.st_uid, info.st_gid) != (os.geteuid(), os.getegid()):
            os.chown(path, info.st_uid, info.st_gid)
        path.chmod(stat.S_IMODE(info.st_mode))
        os.utime(path, ns=(info.st_mtime_ns, info.st_mtime_ns))


def _merge(folders: Sequence[Path], target: Path) -> list[tuple[Sequence[Path], Path]]:
    """Merge one folder of an image into `target`. `folders` are the versions of that folder in several layers (topmost
    first). Its subfolders are only made empty in `target`. Return each as (its versions in the layers, its path in
    `target`), to be merged next."""
    names = {name for folder in folders for name in os.listdir(folder)}  # noqa: PTH208
    made: list[tuple[Sequence[Path], Path]] = []
    removes = False
    for name in sorted(names):
        entry, goal = find_in(folders, name), target / name
        if not entry.paths:
            make_whiteout(goal)
            removes = True
        elif stat.S_ISDIR(entry.paths[0].lstat().st_mode):
            goal.mkdir(mode=0o700)
            if entry.hides_below:
                make_opaque(goal)
            made.append((entry.paths, goal))
        else:
            _link(entry.paths[0], goal)
    if removes:
        # This attribute makes overlayfs look for whiteouts here even if the folder merges with no other.
        os.setxattr(target, _ORIGIN, b"merged")
    return made


def _link(source: Path, goal: Path) -> None:
    """Hard-link a file, or copy it if it has too many links already."""
    try:
        os.link(source, goal, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.EMLINK:
            raise
        info = source.lstat()
        shutil.copy2(source, goal, follow_symlinks=False)
        os.chown(goal, info.st_uid, info.st_gid, follow_symlinks=False)


class Stopped(Exception):
    """A merge was stopped because the store is closing. The partial result is removed together with the scratch folder
    of the process that has the store open."""


class BackgroundJobs:
    """Runs a store's background jobs, such as merges, one at a time on a thread that starts with the first job."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def do(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="merge-layers", daemon=True)
            self._thread.start()

    def check(self) -> None:
        """Raise Stopped if the store is being closed. Jobs call this from time to time."""
        if self._closing.is_set():
            raise Stopped

    def stop(self) -> None:
        """Start no further jobs. The current job ends at its next call of `check`."""
        self._closing.set()

    def finish(self) -> None:
        self._jobs.put(None)
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self.check()
                job()
            except Stopped:
                return
            except OSError:
                # The chain stays as it is, which is slower but correct. A merge that is required runs in
                # `ImageStore.record`, and fails there.
                continue
