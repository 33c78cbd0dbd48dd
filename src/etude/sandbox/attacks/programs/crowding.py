"""Attacks on a box's limit of processes, by starting as many processes or threads as possible.

`python -c <this file> {} <how> <limit>` calls the function `how` of this file. It prints BREACH if afterwards more than
`limit` threads live in the box. The first argument is not used.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time

_TRIES = 200


def _sleepers(uid: int | None) -> None:
    failed = 0
    for _ in range(_TRIES // 4):
        try:
            pid = os.fork()
        except OSError:  # Those that have become somebody else make room.
            failed += 1
            if failed == 6:
                return
            time.sleep(0.02)
            continue
        if pid == 0:
            if uid is not None:
                try:
                    os.setgid(uid)
                    os.setuid(uid)
                except OSError:
                    os._exit(1)
            time.sleep(20)
            os._exit(0)


def same_user() -> None:
    _sleepers(None)


def many_users() -> None:
    """Start processes as several users, which takes root. If the kernel counted by user alone, each user could have as
    many processes as the whole box."""
    for uid in (1, 2, 1000, 1001, 2000, 3000, 4000, 5000, 60_000, 0):
        _sleepers(uid)


def threads() -> None:
    for _ in range(_TRIES):
        try:
            threading.Thread(target=time.sleep, args=(20,), daemon=True).start()
        except RuntimeError:
            return


def living() -> int:
    """Return the number of threads of all processes but pid 1."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdecimal() and name != "1":
            with contextlib.suppress(OSError):
                count += len(os.listdir(f"/proc/{name}/task"))
    return count


def main(calls: str, how: str, limit: str) -> None:
    globals()[how]()
    time.sleep(0.3)
    if (count := living()) > int(limit):
        print("BREACH", how, count, "of", limit)
    print("DONE", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
