"""Keeps every core busy while tests run, to find tests that pass only on an idle machine."""

from __future__ import annotations

import os
import subprocess
import sys

_SPIN = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
while True:
    pass
"""
"""Program that keeps one core busy. It exits when its stdin closes, so it also ends if its parent process is killed."""


class CpuLoad:
    """Keeps cores busy: `each` spinning processes per core, from the first `begin` to the last matching `end`."""

    def __init__(self, each: int = 1) -> None:
        self._inside, self._each = 0, each
        self._processes: list[subprocess.Popen[bytes]] = []

    def begin(self) -> None:
        self._inside += 1
        if self._inside == 1:
            command = [sys.executable, "-I", "-S", "-c", _SPIN]
            self._processes = [
                subprocess.Popen(command, stdin=subprocess.PIPE)
                for _ in range(self._each * len(os.sched_getaffinity(0)))
            ]

    def end(self) -> None:
        self._inside -= 1
        if self._inside:
            return
        processes, self._processes = self._processes, []
        for process in processes:
            process.kill()
        for process in processes:
            process.communicate()
