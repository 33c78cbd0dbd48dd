"""The deny-list of seccomp.json as a BPF program: foreign architectures and listed calls fail, all others pass."""

from __future__ import annotations

import errno
import json
import struct
from pathlib import Path

from etude.sandbox.inside.kernel import CLONE_NEWUTS

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_X32 = 0x40000000
# Every CLONE_NEW* flag that clone() takes: no new namespaces, not even by fork.
_NEW_NAMESPACES = 0x7E020000


def _step(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("=HBBI", code, then, otherwise, value)


def build_program(machine: str) -> bytes:
    """The program that pid 1 installs for itself and so for all; KeyError for a machine that the file does not know."""
    data = json.loads(Path(__file__).with_name("seccomp.json").read_text())
    numbers: dict[str, int] = data["numbers"][machine]
    architecture: int = data["architectures"][machine]

    program = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_EQUAL, architecture, then=1),
        _step(_RETURN, KILL),
        _step(_LOAD, _NUMBER),
        _step(_AT_LEAST, _X32, otherwise=1),
        _step(_RETURN, ERRNO | errno.ENOSYS),
    ]
    for group, answer in (("denied", errno.EPERM), ("absent", errno.ENOSYS)):
        for names in data[group].values():
            for name in names:
                if name in numbers:
                    program += [_step(_EQUAL, numbers[name], otherwise=1), _step(_RETURN, ERRNO | answer)]
    program += [
        _step(_EQUAL, numbers["clone"], otherwise=4),
        _step(_LOAD, _FIRST_ARGUMENT),
        _step(_ANY_BIT, _NEW_NAMESPACES, otherwise=1),
        _step(_RETURN, ERRNO | errno.EPERM),
        _step(_RETURN, ALLOW),
        # Pid 1 gives each command a UTS namespace of its own; a command lacks the right to ask the kernel for one.
        _step(_EQUAL, numbers["unshare"], otherwise=3),
        _step(_LOAD, _FIRST_ARGUMENT),
        _step(_EQUAL, CLONE_NEWUTS, then=1),
        _step(_RETURN, ERRNO | errno.EPERM),
        _step(_RETURN, ALLOW),
    ]
    return b"".join(program)
