"""Holds threads by ptrace, and changes the working folder of a held thread.

A stopped process can be woken from inside the box: a timer may send it SIGCONT. A held thread runs no instruction of
its own until it is released, whatever signal comes; only SIGKILL ends it.

To change its working folder, a held thread is made to call chdir, with all signals blocked: it runs a system call
instruction in its vdso, the page of code that the kernel maps into every process. For that moment, the path lies below
the thread's stack. Afterwards registers, memory and signal mask are restored.

Invariant: whatever fails, the thread is left as it was, and held.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import signal
import struct
import time
from collections.abc import Iterator

from etude.sandbox.inside import kernel, processes

KNOWN = kernel.MACHINE == "x86_64"
"""Whether this module knows the register layout of this machine, which it needs to make a held thread call chdir."""
_GETREGS, _SETREGS, _DETACH, _TO_NEXT_CALL = 12, 13, 17, 24
_SEIZE, _INTERRUPT, _GETSIGMASK, _SETSIGMASK, _GET_RSEQ = 0x4206, 0x4207, 0x420A, 0x420B, 0x420F
_MARK_CALLS, _AT_CALL, _EVENT_STOP = 1, 5 | 0x80, 0x80
_PATIENCE = 1.0
"""Seconds until all threads must be held. One that waits for its child in vfork stops only with the child."""
_ALSO_THREADS = 0x40000000  # __WALL
_STOPS = os.WSTOPPED | os.WEXITED | os.WNOWAIT | _ALSO_THREADS
"""Flags of waitid, to learn of the stop or end of a traced thread without reaping it (WNOWAIT). If it is a command's
main process, the `Command` object reaps it later."""
_REGISTERS = struct.Struct("=27Q")
_RAX, _RDI, _ORIGINAL_RAX, _RIP, _RSP = 10, 14, 15, 16, 19
_RED_ZONE = 128
"""Bytes below the stack pointer that an x86-64 function may use."""
_CHDIR, _INSTRUCTION, _NO_CALL = 80, b"\x0f\x05", 2**64 - 1
_EVERY_SIGNAL = struct.pack("=Q", 2**64 - 1)


class Hold:
    """Holds all threads of the box but pid 1's, from `take_all` until `release`."""

    def __init__(self) -> None:
        self.threads: dict[int, list[int]] = {}
        """Process -> its held threads."""
        self._free: dict[int, str] = {}
        """Thread that cannot be held -> the reason."""
        self._late: list[tuple[int, int]] = []

    def take_all(self) -> str:
        """Hold every thread, those of processes that are made meanwhile included. Return "", or why one cannot be held,
        for example because a debugger in the box holds it, or because it does not stop. The others are held in any
        case."""
        deadline = time.monotonic() + _PATIENCE
        self._free = {}
        while fresh := self._fresh():
            if time.monotonic() > deadline:
                return "processes end and start all the time"
            for process, thread in fresh:
                self._seize(process, thread)
            for process, thread in fresh:
                if thread in self.threads.get(process, ()) and not _stopped_by(process, thread, deadline):
                    self.threads[process].remove(thread)
                    self._free[thread] = "it does not stop"
                    self._late.append((process, thread))
        return "; ".join(f"thread {thread}: {why}" for thread, why in self._free.items())

    def _fresh(self) -> list[tuple[int, int]]:
        """Return (process, thread) of each living thread that is not held yet."""
        found = ((process, processes.threads_of(process)) for process in processes.living())
        return [
            (process, thread)
            for process, threads in found
            for thread in threads
            if thread not in self.threads.get(process, ())
            and thread not in self._free
            and processes.is_alive(process, thread)
        ]

    def _seize(self, process: int, thread: int) -> None:
        try:
            kernel.ptrace(_SEIZE, thread, 0, _MARK_CALLS)
        except OSError as error:
            if processes.is_alive(process, thread):
                self._free[thread] = str(error.strerror)
            return
        self.threads.setdefault(process, []).append(thread)
        if not _stops(thread, os.WNOHANG):  # It has been woken: one that stands still is held at once.
            with contextlib.suppress(ProcessLookupError):
                kernel.ptrace(_INTERRUPT, thread, 0, 0)

    def release(self, commands: set[int]) -> None:
        """Release all held threads. They go on, or stay stopped if a signal has stopped their process. Threads that
        were killed are reaped, except `commands`, the main processes of commands, which pid 1 reaps later. Safe to call
        twice."""
        held, self.threads = self.threads, {}
        for process, threads in held.items():
            for thread in sorted(threads, key=process.__eq__):  # The main thread can be reaped after the others alone.
                _let_go(thread, reap=thread not in commands)

    def release_late(self) -> None:
        """Release the threads that did not stop in time for `take_all`. They stop now that their processes go on; one
        that does not stop within a quarter of _PATIENCE stays traced."""
        late, self._late = self._late, []
        deadline = time.monotonic() + _PATIENCE / 4
        for process, thread in late:
            if _stopped_by(process, thread, deadline):
                _let_go(thread)


def _stops(thread: int, flags: int = 0) -> os.waitid_result | None:
    """Return the stop or end of a traced thread; with WNOHANG, None if it still runs."""
    return os.waitid(os.P_PID, thread, _STOPS | flags)


def _let_go(thread: int, *, reap: bool = True) -> None:
    """Release a held thread. If it was killed meanwhile, reap it instead (with `reap`), because its parent can reap it
    only after its tracer, this process, has done so."""
    try:
        kernel.ptrace(_DETACH, thread, 0, 0)
        return
    except ProcessLookupError:
        if not reap:
            return
    deadline = time.monotonic() + _PATIENCE  # It may still be ending.
    with contextlib.suppress(ChildProcessError):
        while os.waitid(os.P_PID, thread, os.WEXITED | os.WNOHANG | _ALSO_THREADS) is None:
            if time.monotonic() > deadline:
                return
            time.sleep(0.0003)


def _stopped_by(process: int, thread: int, deadline: float) -> bool:
    """Wait until the thread is held or has ended. Return False if it is neither at the deadline. The end of a main
    thread cannot be waited for before the other threads are reaped."""
    while _stops(thread, os.WNOHANG) is None and processes.is_alive(process, thread):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.0003)
    return True


def change_folder(thread: int, path: str, vdso: int) -> None:
    """Make the held thread change its working folder. `vdso` is the address of the vdso in its memory. Raises OSError
    if the call fails."""
    instruction = vdso + _offset_in_vdso()
    with _memory_of(thread) as memory, _signals_blocked(thread):
        if os.pread(memory, len(_INSTRUCTION), instruction) != _INSTRUCTION:
            raise OSError(errno.ENOEXEC, "the thread has another vdso")
        _require_no_rseq(thread, memory)
        before = bytes(_registers(thread))
        try:
            result = _call(thread, memory, before, os.fsencode(path) + b"\0", instruction)
        finally:
            kernel.ptrace(_SETREGS, thread, 0, before)
    if result:
        raise OSError(-result, os.strerror(-result), path)


@contextlib.contextmanager
def _memory_of(thread: int) -> Iterator[int]:
    memory = os.open(f"/proc/{thread}/mem", os.O_RDWR | os.O_CLOEXEC)
    try:
        yield memory
    finally:
        os.close(memory)


@contextlib.contextmanager
def _signals_blocked(thread: int) -> Iterator[None]:
    """Block all signals of the traced thread during the block. Signals that arrive meanwhile stay pending."""
    mask = ctypes.create_string_buffer(8)
    kernel.ptrace(_GETSIGMASK, thread, 8, mask)
    kernel.ptrace(_SETSIGMASK, thread, 8, _EVERY_SIGNAL)
    try:
        yield
    finally:
        kernel.ptrace(_SETSIGMASK, thread, 8, mask)


def _call(thread: int, memory: int, before: bytes, text: bytes, instruction: int) -> int:
    """Make the thread call chdir with the path `text`, and return the result. `instruction` is the address of a system
    call instruction."""
    registers = list(_REGISTERS.unpack(before))
    address = registers[_RSP] - _RED_ZONE - len(text)
    saved = os.pread(memory, len(text), address)
    registers[_RIP], registers[_RAX], registers[_RDI] = instruction, _CHDIR, address
    # Keeps the kernel from restarting the call in which the thread was stopped, until the registers are restored.
    registers[_ORIGINAL_RAX] = _NO_CALL
    try:
        os.pwrite(memory, text, address)
        kernel.ptrace(_SETREGS, thread, 0, _REGISTERS.pack(*registers))
        for _ in ("into the call", "out of it"):
            _run_to_syscall_stop(thread)
        return ctypes.c_int(_REGISTERS.unpack(_registers(thread))[_RAX] & 0xFFFFFFFF).value
    finally:
        os.pwrite(memory, saved, address)


def _run_to_syscall_stop(thread: int) -> None:
    """Continue a held thread until it next enters or leaves a system call. If a SIGSTOP or SIGCONT stops it before
    that, it is continued again, since it is held already."""
    seen: int = signal.SIGSTOP
    while seen == signal.SIGSTOP or seen >> 8 == _EVENT_STOP:
        kernel.ptrace(_TO_NEXT_CALL, thread, 0, 0)
        seen = _wait_for_stop(thread)
    if seen != _AT_CALL:
        raise OSError(errno.EINTR, "the thread was stopped by something else")


def _registers(thread: int) -> ctypes.Array[ctypes.c_char]:
    found = ctypes.create_string_buffer(_REGISTERS.size)
    kernel.ptrace(_GETREGS, thread, 0, found)
    return found


def _require_no_rseq(thread: int, memory: int) -> None:
    """Refuse a thread in a restartable sequence (rseq), which the kernel would not restart after the injected system
    call."""
    found = ctypes.create_string_buffer(24)
    kernel.ptrace(_GET_RSEQ, thread, len(found), found)
    area = int.from_bytes(found.raw[:8], "little")
    if area and any(os.pread(memory, 8, area + 8)):
        raise OSError(errno.EBUSY, "the thread may be in a restartable sequence")


def _wait_for_stop(thread: int) -> int:
    """Return the signal or event that stopped the traced thread."""
    seen = _stops(thread)
    if seen is None or seen.si_code != os.CLD_TRAPPED:
        raise ProcessLookupError(errno.ESRCH, "the thread has ended")
    return seen.si_status


@functools.cache
def _offset_in_vdso() -> int:
    """Offset of a system call instruction in the vdso, the same in every process."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        addresses = next(line.split()[0] for line in maps if line.endswith("[vdso]\n"))
    start, end = (int(address, 16) for address in addresses.split("-"))
    return ctypes.string_at(start, end - start).index(_INSTRUCTION)
