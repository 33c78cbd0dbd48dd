"""The kernel ids of each box, which decide what boxes share in the kernel.

The kernel counts pipe pages, descriptors in flight, file watches, processes and more for each user id. Boxes of the
same ids would take them from each other. Therefore, where the zygote has ids enough, each box gets a range of its own.

Files have the same owners in all layers and cells, whichever box wrote them. Each box sees them through mounts that
translate these owners to the box's range (views.py).

Invariant: no two living boxes of a host have the same `creator` (see BoxIds), even if different zygotes made them. A
box's creator follows from its number, and each zygote locks the numbers that it uses in a file of the host. Zygotes
that see different files, as in containers with a /run of their own, may use the same number. Two sorts of boxes have no
creator of their own: those with a single id (mode user), and those beyond the last number (2,249 for root).
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
_MAX_UNUSED = 64
_LOCK = struct.Struct("@hhqqi0q")


class BoxIds:
    """The kernel ids of one box.

    `first`: the id in the zygote's namespace that is id 0 in the box; -1 if the box has a single id, that of the user
    who runs Étude.

    `creator`: id of the user that makes the box's user namespace. The kernel adds up what all users of the box take,
    charges the sum to the creator and compares it with the limits that the creator had. -1: the zygote's user, which
    many boxes share.

    `namespace`: descriptor of the user namespace by which mounts translate the owners of files to the box's range; -1
    if the owners need no translation."""

    __slots__ = ("creator", "first", "namespace", "number")

    def __init__(self, first: int = -1, creator: int = -1, namespace: int = -1, number: int = -1) -> None:
        self.first, self.creator, self.namespace, self.number = first, creator, namespace, number


class IdPool:
    """Hands out the kernel ids of boxes (BoxIds). Ids that were given back are handed out first, because new ones may
    cost a fork."""

    def __init__(self, settings: ZygoteSettings) -> None:
        """Must be called while the zygote can still open the host's files, because this opens the file of locks."""
        self._settings = settings
        self.own_ranges = False
        """Whether each box gets a range of user ids of its own. The zygote sets it only if the kernel can show files
        under other ids (views.py)."""
        self._unused: list[BoxIds] = []
        self._shared: BoxIds | None = None
        self._ours: set[int] = set()
        self._locks, self._next, self._count = -1, 0, 0
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
        if number < 0:
            return self._shared_ids()
        if not self._settings.spare_ranges:
            return BoxIds(base, base + 1 + number, number=number)
        own = base + (1 + number) * count
        if not self.own_ranges:
            return BoxIds(base, own, number=number)
        try:
            return BoxIds(own, own, make_id_namespace([(base, own, count)]), number)
        except BaseException:
            self._free(number)
            raise

    def _shared_ids(self) -> BoxIds:
        """Return the ids for boxes beyond the last number. All such boxes have the same ids and no creator of their
        own."""
        if self._shared is None:
            base, count = self._settings.range_base or 0, self._settings.range_count
            self._shared = BoxIds(base, -1, make_id_namespace([(base, base, count)]) if self.own_ranges else -1)
        return self._shared

    def give_back(self, ids: BoxIds) -> None:
        """Keep the ids of a box for a later box, if they are its own. The caller must have ended all processes of the
        box."""
        if ids.number >= 0:
            self._unused.append(ids)
        if len(self._unused) > _MAX_UNUSED:
            oldest = self._unused.pop(0)
            if oldest.namespace >= 0:
                os.close(oldest.namespace)
            self._free(oldest.number)

    def _free(self, number: int) -> None:
        self._ours.remove(number)
        if self._locks >= 0:
            self._lock(number, fcntl.F_UNLCK)

    def _lock_number(self) -> int:
        """Reserve a number for the ids of a new box, one that no other box of the host has, and return it; -1 if all
        are taken."""
        for _ in range(self._count):
            number = self._next
            self._next = (number + 1) % self._count
            if number in self._ours:
                continue
            if self._locks < 0:
                self._ours.add(number)
                return number
            try:
                self._lock(number, fcntl.F_WRLCK)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
            else:
                self._ours.add(number)
                return number
        return -1

    def _lock(self, number: int, kind: int) -> None:
        fcntl.fcntl(self._locks, fcntl.F_OFD_SETLK, _LOCK.pack(kind, os.SEEK_SET, number, 1, 0))


def _open_locks() -> int:
    """Open the file of locks: locking its n-th byte reserves the number n for a box. The kernel frees the locks when
    the zygote ends, since boxes do not inherit the descriptor."""
    for folder in _FOLDERS:
        try:
            number = os.open(f"{folder}/{LOCKS}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:  # A folder that is missing or read-only, or a file that another user has put there.
            continue
        if os.fstat(number).st_uid == os.geteuid():
            return number
        os.close(number)
    raise kernel.StepFailed("ids for a box", errno.EROFS)
