"""The kernel ids of each box, which decide what boxes share in the kernel.

The kernel counts pipe pages, descriptors in flight, file watches, processes and more for each user id. Boxes of the same
ids would take them from each other. Therefore, where the zygote has ids enough, each box gets a range of its own.

Files have the same owners in all layers and cells, whichever box wrote them. Each box sees them through mounts that
translate these owners to the box's range (views.py).

Invariant: no two living boxes of a host have the same `creator`, and none of another zygote either, as each locks its
numbers in a file of the host. Only boxes without ids of their own (mode user) have none.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

from etude.sandbox.inside import kernel
from etude.sandbox.inside.zygote_root import ZygoteSettings, make_id_namespace

LOCKS = "etude-box-ids.lock"
_FOLDERS = ("/run", "/var/run", "/dev/shm", "/tmp")
_LOCK = struct.Struct("@hhqqi0q")


class BoxIds:
    """`first`: the id in the zygote's namespace that is id 0 in the box; -1 if the box has one id, the caller's own.

    `creator`: the user that makes the box's user namespace. Under it the kernel adds up what all users of the box take,
    and compares the sum with the limits that the creator had. -1: the zygote's user, which is the same for all boxes.

    `namespace`: descriptor of the user namespace that translates the owners of files to the box's range; -1 if they are
    the same."""

    __slots__ = ("creator", "first", "namespace")

    def __init__(self, first: int = -1, creator: int = -1, namespace: int = -1) -> None:
        self.first, self.creator, self.namespace = first, creator, namespace


class IdPool:
    """Hands out BoxIds. Those given back are used again first, since making them costs a fork."""

    def __init__(self, settings: ZygoteSettings) -> None:
        """Create the pool while the host's files can still be opened, since it opens the file of locks."""
        self._settings = settings
        self.own_ranges = False
        """Give each box a range of its own. Set this only if the kernel can show files under other ids (views.py)."""
        self._unused: list[BoxIds] = []
        self._locks, self._next, self._tried, self._count = -1, 0, 0, 0
        if settings.range_base is not None:
            self._count = settings.spare_ranges or settings.range_count - 1
            if settings.subordinate is None:  # Otherwise no other zygote has these ids in its namespace.
                self._locks = _open_locks()
                # A random start, so that zygotes in containers with a /run of their own seldom meet.
                self._next = int.from_bytes(os.urandom(4), "little") % self._count

    def take(self) -> BoxIds:
        if self._settings.range_base is None:
            return BoxIds()
        if self._unused:
            return self._unused.pop()
        base, count = self._settings.range_base, self._settings.range_count
        number = self._lock_number()
        if not self._settings.spare_ranges:
            return BoxIds(base, base + 1 + number)
        own = base + (1 + number) * count
        if not self.own_ranges:
            return BoxIds(base, own)
        return BoxIds(own, own, make_id_namespace([(base, own, count)]))

    def give_back(self, ids: BoxIds) -> None:
        """Called when no process of the box is left."""
        if ids.creator >= 0:
            self._unused.append(ids)

    def _lock_number(self) -> int:
        while self._tried < self._count:
            number = self._next
            self._tried, self._next = self._tried + 1, (number + 1) % self._count
            if self._locks < 0:
                return number
            try:
                fcntl.fcntl(self._locks, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0))
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
            else:
                return number
        raise kernel.StepFailed("ids for a box", errno.ENOSPC)


def _open_locks() -> int:
    """Open the file whose bytes stand for the numbers of boxes. The kernel frees the locks when the zygote ends. Its
    boxes do not inherit the descriptor."""
    for folder in _FOLDERS:
        try:
            number = os.open(f"{folder}/{LOCKS}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:  # A folder that is missing or read-only, or a file that another user has put there.
            continue
        if os.fstat(number).st_uid == os.geteuid():
            return number
        os.close(number)
    raise kernel.StepFailed("ids for a box", errno.EROFS)
