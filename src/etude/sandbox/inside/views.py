"""Views: mounts that show folders of the zygote's root under the ids of one box. Overlayfs takes them as the layers of
a box that has a range of ids of its own (box_ids.py).

Overlayfs keeps copies of the mounts that it is given, so views are needed only while an overlay is made. All are
mounted below one mount, with which they are unmounted in one step. That step is slow (it waits for all CPUs), so it is
left for when the zygote is idle.

A box can read the paths of its layers in its mount table, so these paths must be the same for all boxes. Therefore the
views of each box are mounted in the same folder, on top of the views of the box before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from etude.sandbox.inside import kernel
from etude.sandbox.inside.box_ids import BoxIds

_PLACE = "views"
_COVERED, _CLEAR = f"{_PLACE}/box", f"{_PLACE}/clear"
"""The folder in which the views of each box are mounted, and a folder of empty folders, which is mounted over it to
hide the views of the box before."""
STEP = "show ids"


class Views:
    def __init__(self) -> None:
        self.count = 0
        """Number of mounts at the folder `views` and below it."""
        self._folders = 0

    @contextmanager
    def shown(self, folders: list[str], ids: BoxIds) -> Iterator[list[str]]:
        """Mount a view of each folder, in which the files' owners are ids of the box, and yield the views' paths.
        During the block, files that this process makes belong to the box's root, and the process keeps all of its own
        rights. For a box without ids of its own, only yield `folders`."""
        if ids.namespace < 0:
            yield folders
            return
        self._cover()
        shown = [self._mount(folder, number, ids.namespace) for number, folder in enumerate(folders)]
        kernel.keep_capabilities(True)
        kernel.set_file_ids(ids.first, ids.first)
        try:
            yield shown
        finally:
            kernel.set_file_ids(0, 0)
            kernel.keep_capabilities(False)
            kernel.prctl(kernel.PR_SET_DUMPABLE, 1)

    def _cover(self) -> None:
        if not self._folders:
            os.mkdir(_COVERED)
            os.mkdir(_CLEAR)
        if not self.count:
            self._attach(_PLACE, _PLACE)
        self._attach(_CLEAR, _COVERED)

    def _mount(self, folder: str, number: int, namespace: int) -> str:
        if number == self._folders:
            os.mkdir(f"{_CLEAR}/{number}")
            self._folders += 1
        place = f"{_COVERED}/{number}"
        self._attach(folder, place, namespace)
        return place

    def _attach(self, folder: str, place: str, namespace: int = -1) -> None:
        tree = kernel.copy_mount(folder, STEP)
        try:
            if namespace >= 0:
                kernel.map_mount_ids(tree, namespace, STEP)
            kernel.attach_mount(tree, place, STEP)
            self.count += 1
        finally:
            os.close(tree)

    def unmount(self) -> None:
        if self.count:
            kernel.unmount(_PLACE, STEP)
            self.count = 0
