"""Finds and removes System V objects (shared memory, message queues, semaphores) whose processes have ended. They would
outlive their command and hold the box's memory, so that pid 1 has none left for the next request.

For each kind of object, a single system call tells whether any exist. Usually none do.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator

_libc = ctypes.CDLL(None, use_errno=True)
Control = Callable[[int, int, object], int]
Left = tuple[Control, int, int]
"""An object that is left: the function that controls its kind, its id, and the user id of its creator."""
_REMOVE, _BUFFER_BYTES = 0, 256
_HEAD = struct.Struct("iIIII")
"""Start of an object's structure: key, owner, group, creator, creator's group."""
_SEGMENT_USERS, _SEGMENT_USERS_AT = struct.Struct("iiQ"), 80
"""In a segment's structure: the pids of its creator and last user, and the number of attachments."""


def find_left(is_alive: Callable[[int], bool] | None) -> list[Left]:
    """Return the objects that no process of the box uses any more. If `is_alive` is None, no process is left, so all
    objects are returned. Otherwise `is_alive` tells whether a pid is alive, and only shared memory segments are
    returned that nobody has attached and whose creator has ended. Queues and semaphores do not show who uses them, so
    they are left until no process remains."""
    left: list[Left] = []
    for number, facts in _each(_libc.shmctl, 14, 15, 0):  # SHM_INFO, SHM_STAT_ANY
        creator, _, attached = _SEGMENT_USERS.unpack_from(facts, _SEGMENT_USERS_AT)
        if is_alive is None or not (attached or is_alive(creator)):
            left.append((_libc.shmctl, number, _HEAD.unpack_from(facts)[3]))
    if is_alive is None:
        left += [
            (_libc.msgctl, number, _HEAD.unpack_from(facts)[3]) for number, facts in _each(_libc.msgctl, 12, 13, 0)
        ]
        left += [(_semctl, number, _HEAD.unpack_from(facts)[3]) for number, facts in _each(_semctl, 19, 20, 28)]
    return left


def remove(left: list[Left], become: Callable[[int], None]) -> None:
    """Remove the objects `left`. Only the creator of an object may remove it, so `become` is called with the user id of
    each creator."""
    for creator in {creator for _, _, creator in left}:
        become(creator)
        for control, number, owner in left:
            if owner == creator:
                control(number, _REMOVE, None)


def _each(control: Control, info: int, stat: int, count_at: int) -> Iterator[tuple[int, bytes]]:
    """Yield the id and the kernel's structure of every object of one kind, which `control` controls. The command `info`
    returns the highest index, and fills a structure that has the number of objects at `count_at`. The command `stat`
    gives the object at an index, even if the caller may not read the object."""
    buffer = ctypes.create_string_buffer(_BUFFER_BYTES)
    highest = control(0, info, buffer)
    if highest < 0 or not int.from_bytes(buffer.raw[count_at : count_at + 4], "little"):
        return
    for index in range(highest + 1):
        if (number := control(index, stat, buffer)) >= 0:
            yield number, buffer.raw


def _semctl(number: int, command: int, buffer: object) -> int:
    return int(_libc.semctl(number, 0, command, buffer))
