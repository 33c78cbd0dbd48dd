"""Bounds the time and memory that one input may take, in the process that runs it, and measures both."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

_MMAP_THRESHOLD, _LARGE = -3, 128 << 10
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SLACK_BYTES = 256 << 20
"""Address space beyond the limit, since the allocators reserve more than they use."""
_RESET_PEAK = b"5"


class TooSlow(BaseException):
    """An input has used up its CPU time. No `except Exception` of the parser catches this."""


class Bounds:
    """The bounds of one process, which it can only set once. `seconds` and `megabytes` hold for each input."""

    def __init__(self, seconds: float, megabytes: int) -> None:
        self.seconds = seconds
        # Large blocks are returned to the kernel when they are freed, so that each input's own peak can be seen.
        self._libc = ctypes.CDLL(None)
        self._libc.mallopt(_MMAP_THRESHOLD, _LARGE)
        self.release_free_memory()
        size = int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE + (megabytes << 20) + _SLACK_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGPROF, _raise_too_slow)
        signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)
        self._reset = os.open("/proc/self/clear_refs", os.O_WRONLY)

    def release_free_memory(self) -> None:
        """Return to the kernel what the allocator keeps. An input that uses such memory would seem to take none."""
        self._libc.malloc_trim(ctypes.c_size_t(0))

    @contextlib.contextmanager
    def of_one_input(self, factor: float = 1.0) -> Iterator[Usage]:
        """Run one input in the block. Raise TooSlow in it after `factor` times the allowed CPU time. Where Python
        cannot raise it, for example in a C function, the kernel kills the process a second later."""
        usage = Usage()
        seconds = self.seconds * factor
        before = self._resident()
        os.write(self._reset, _RESET_PEAK)
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, seconds, 0.1)
        # No limit on CPU time, which is for the whole process: the kernel counts for it by ticks, and may be seconds
        # ahead of what it tells.
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds + 1)
        try:
            yield usage
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            usage.seconds = time.process_time() - began
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
            usage.bytes = max(0, peak - before)

    def _resident(self) -> int:
        return int(os.pread(self._statm, 256, 0).split()[1]) * _PAGE


class Usage:
    """What one input has taken. Set when its block ends."""

    seconds = 0.0
    bytes = 0


def _raise_too_slow(number: int, frame: FrameType | None) -> None:
    raise TooSlow
