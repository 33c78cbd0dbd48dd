"""Landlock bindings: a process gives up access to all files except those below given paths, for itself and its
descendants.

Landlock needs no privileges and no namespaces. The kernel's Landlock version determines what can be given up.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import struct

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_ASK_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, _READ_FILE, _READ_FOLDER = 1, 4, 8
_FILE_RIGHTS = 0b111 | 1 << 14 | 1 << 15
"""Rights that a rule on a single file may grant: execute, write, read, truncate, and ioctl on devices."""
_RIGHT_COUNTS = {1: 13, 2: 14, 3: 15, 5: 16}
"""Landlock version -> number of file access rights from that version on."""
_TCP = 0b11
"""Rights to bind and to connect TCP sockets. `restrict` takes them away if the kernel has Landlock 4 or later."""
_SCOPES = 0b11
"""Rights to connect to abstract sockets of processes outside and to signal these processes. `restrict` takes them away
if the kernel has Landlock 6 or later."""

_libc = ctypes.CDLL(None, use_errno=True)


def version() -> int:
    """The kernel's Landlock version; 0 if it has none."""
    return max(0, int(_libc.syscall(_CREATE, None, ctypes.c_size_t(0), _ASK_VERSION)))


def restrict(read: list[str], write: list[str]) -> None:
    """Allow this process only to read and execute files below `read`, and to do everything below `write`. If the kernel
    supports it, TCP and signals to processes outside are forbidden too."""
    known = version()
    files = (1 << max(count for first, count in _RIGHT_COUNTS.items() if first <= max(known, 1))) - 1
    attributes = struct.pack("=QQQ", files, _TCP if known >= 4 else 0, _SCOPES if known >= 6 else 0)
    size = 24 if known >= 6 else 16 if known >= 4 else 8
    rules = _check(_libc.syscall(_CREATE, ctypes.c_char_p(attributes), ctypes.c_size_t(size), 0))
    try:
        for paths, rights in ((read, _EXECUTE | _READ_FILE | _READ_FOLDER), (write, files)):
            for path in paths:
                with contextlib.suppress(FileNotFoundError):
                    _add(rules, path, rights)
        _check(_libc.syscall(_RESTRICT, rules, 0))
    finally:
        os.close(rules)


def _add(rules: int, path: str, rights: int) -> None:
    number = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(number).st_mode):
            rights &= _FILE_RIGHTS
        rule = struct.pack("=Qi", rights, number)
        _check(_libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, ctypes.c_char_p(rule), 0))
    finally:
        os.close(number)


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"landlock: {os.strerror(number)}")
    return int(result)
