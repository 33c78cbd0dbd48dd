"""Enters a user namespace in which the caller is root and the caller's subordinate ids (/etc/subuid) are the ids from
1.

Only the set-uid programs newuidmap and newgidmap may write such a map, and only from outside the namespace, so a child
that stays outside runs them. Root of the namespace has every right over files of these ids and of the caller.
"""

# Plain strings and descriptors instead of Path, as everywhere in `inside`.
# ruff: noqa: PTH118

from __future__ import annotations

import errno
import os

from etude.sandbox.inside import kernel

TYPE_CHECKING = False  # As in wire.py.
if TYPE_CHECKING:
    from typing import NoReturn

FIRST = 1
"""The id inside that the first subordinate id is mapped to."""
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
    process = os.getpid()
    rows = ((os.getuid(), users), (os.getgid(), groups))
    entered, enter = os.pipe()
    helper = os.fork()
    if helper == 0:
        os.close(enter)
        os.read(entered, 1)
        _write_map(process, rows, count)
    try:
        kernel.unshare(kernel.CLONE_NEWUSER, "user namespace")
    finally:
        os.close(entered)
        os.close(enter)
        _, status = os.waitpid(helper, 0)
    if status:
        raise kernel.StepFailed(STEP, errno.EPERM)


def _write_map(process: int, rows: tuple[tuple[int, int], ...], count: int) -> NoReturn:
    """Run in a forked helper; exit with 0 on success."""
    code = 1
    try:
        for program, (own, first) in zip(PROGRAMS, rows, strict=True):
            numbers = map(str, (process, 0, own, 1, FIRST, first, count))
            if os.spawnv(os.P_WAIT, find_program(program), [program, *numbers]):
                break
        else:
            code = 0
    finally:
        os._exit(code)
