"""Enters a user namespace in which the caller is root and the caller's subordinate ids (/etc/subuid) are the ids from
1.

Only the set-uid programs newuidmap and newgidmap may write such a map, and only from outside the namespace, so a child
that stays outside runs them. Root of the namespace has every right over files of these ids and of the caller.
"""

from __future__ import annotations

import errno
import os

from etude.sandbox.inside import kernel

FIRST = 1
"""The id that the first subordinate id has in the new user namespace."""
STEP = "subordinate ids"
PROGRAMS = ("newuidmap", "newgidmap")
_FOLDERS = ("/usr/bin", "/bin", "/usr/local/bin", "/run/wrappers/bin")


def find_program(name: str) -> str:
    places = (os.path.join(folder, name) for folder in _FOLDERS)
    return next((place for place in places if os.access(place, os.X_OK)), "")


def enter(users: int, groups: int, count: int) -> None:
    """Map the caller to root and `count` subordinate ids to the ids from FIRST. `users` and `groups` are the first
    subordinate ids on the host. If the map is refused, newuidmap or newgidmap has written the reason to stderr. Only
    for a single-threaded process."""
    rows = ((os.getuid(), users), (os.getgid(), groups))

    def write_maps(process: int) -> None:
        for program, (own, first) in zip(PROGRAMS, rows, strict=True):
            numbers = map(str, (process, 0, own, 1, FIRST, first, count))
            if os.spawnv(os.P_WAIT, find_program(program), [program, *numbers]):
                raise PermissionError(errno.EPERM, program)

    kernel.unshare_user(write_maps, STEP)
