"""Views: mounts that show folders of the zygote's root under the ids of one box. Overlayfs takes them as the layers of
a box that has a range of ids of its own (box_ids.py).

Overlayfs keeps copies of the mounts that it is given, so views are needed only while an overlay is made. All are
mounted below one mount, with which they are unmounted in one step. That step is slow (it waits for all CPUs), so it is
left for when the zygote is idle.

A box reads the paths of its layers in its list of mounts. So they are the same for each box: PLACE/0 and so on, where
the views of later boxes cover those of earlier ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from etude.sandbox.inside import kernel
from etude.sandbox.inside.box_ids import BoxIds

_PLACE = "views"
STEP = "show ids"


class Views:
    def __init__(self) -> None:
        self.count = 0
        """Number of views that are mounted."""
        self._folders = 0
        self._based = False

    @contextmanager
    def shown(self, folders: list[str], ids: BoxIds) -> Iterator[list[str]]:
        """Yield a path for each folder under which it shows the box's ids. During the block this process makes files as
        the box's root, with all of its rights. For a box without ids of its own, yield the folders themselves."""
        if ids.namespace < 0:
            yield folders
            return
        shown = [self._mount(folder, number, ids.namespace) for number, folder in enumerate(folders)]
        kernel.keep_capabilities(True)
        kernel.set_file_ids(ids.first, ids.first)
        try:
            yield shown
        finally:
            kernel.set_file_ids(0, 0)
            kernel.keep_capabilities(False)
            kernel.prctl(kernel.PR_SET_DUMPABLE, 1)

    def _mount(self, folder: str, number: int, namespace: int) -> str:
        if not self._based:
            self._attach(_PLACE, _PLACE)
            self._based = True
        place = f"{_PLACE}/{number}"
        if number == self._folders:
            os.mkdir(place)
            self._folders += 1
        self._attach(folder, place, namespace)
        self.count += 1
        return place

    def _attach(self, folder: str, place: str, namespace: int = -1) -> None:
        tree = kernel.copy_mount(folder, STEP)
        try:
            if namespace >= 0:
                kernel.map_mount_ids(tree, namespace, STEP)
            kernel.attach_mount(tree, place, STEP)
        finally:
            os.close(tree)

    def unmount(self) -> None:
        if self._based:
            kernel.unmount(_PLACE, STEP)
            self.count, self._based = 0, False
