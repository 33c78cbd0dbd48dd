"""Compiles the deny-list of seccomp.json to a BPF program. Calls of foreign architectures end the process, listed calls
fail, and all others pass."""

from __future__ import annotations

import errno
import json
import os
import struct
from collections.abc import Collection

from etude.sandbox.inside.kernel import CLONE_NEWUTS

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE = 0, 4
_FIRST_ARGUMENT, _SECOND_ARGUMENT, _THIRD_ARGUMENT, _FOURTH_ARGUMENT = 16, 24, 32, 40
_SOL_SOCKET, _SO_ATTACH_FILTER, _SO_ATTACH_REUSEPORT_CBPF = 1, 26, 51
_PR_SET_SECCOMP = 22
_HUGE_PAGES = (
    ("mmap", _FOURTH_ARGUMENT, 0x40000, errno.ENOMEM),
    ("shmget", _THIRD_ARGUMENT, 0o4000, errno.ENOMEM),
    ("memfd_create", _SECOND_ARGUMENT, 4, errno.EINVAL),
)
"""System calls that take huge pages: name, the argument and bit that ask for them, and the error."""
_X32 = 0x40000000
# All CLONE_NEW* flags of clone(). They are denied, so that no fork makes a namespace.
_NEW_NAMESPACES = 0x7E020000


def _step(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    """Return one BPF instruction. For a test, `then` and `otherwise` are the numbers of instructions to skip."""
    return struct.pack("=HBBI", code, then, otherwise, value)


def build_program(machine: str, *, root_alone: bool = False, families: Collection[str] = ()) -> bytes:
    """Build the seccomp program of a box. Raises KeyError for a machine that seccomp.json does not list.

    With `root_alone`, root is the box's only user. System calls that change file owners then succeed without doing
    anything, since package managers would fail otherwise. `families` are the allowed socket families; by default, all
    that seccomp.json lists."""
    with open(f"{os.path.dirname(__file__)}/seccomp.json") as file:
        data = json.load(file)
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
    answers = [("denied", errno.EPERM), ("absent", errno.ENOSYS)]
    for group, answer in [*answers, *([("for_show", 0)] if root_alone else [])]:
        listed = {name for names in data[group].values() for name in names}
        program += _answered(sorted(numbers[name] for name in listed & numbers.keys()), answer)
    allowed = [number for name, number in data["families"].items() if name in (families or data["families"])]
    program += _only_with(numbers["socket"], allowed, errno.EAFNOSUPPORT)
    # Commands may not set limits of other processes. Pid 1 may have the same user id as a command, and could not run
    # for long if a command set pid 1's descriptor limit to zero.
    program += _only_with(numbers["prlimit64"], [0], errno.EPERM)
    # Pid 1 makes a UTS namespace for each command. Commands lack the right to make one.
    program += _only_with(numbers["unshare"], [CLONE_NEWUTS], errno.EPERM)
    program += _never_with(numbers["clone"], {_FIRST_ARGUMENT: [_NEW_NAMESPACES]}, errno.EPERM, test=_ANY_BIT)
    filters = {_SECOND_ARGUMENT: [_SOL_SOCKET], _THIRD_ARGUMENT: [_SO_ATTACH_FILTER, _SO_ATTACH_REUSEPORT_CBPF]}
    program += _never_with(numbers["setsockopt"], filters, errno.EPERM)
    # As on a kernel without filters of system calls, and on one whose huge pages are all taken.
    program += _never_with(numbers["prctl"], {_FIRST_ARGUMENT: [_PR_SET_SECCOMP]}, errno.EINVAL)
    for name, place, bit, answer in _HUGE_PAGES:
        program += _never_with(numbers[name], {place: [bit]}, answer, test=_ANY_BIT)
    program.append(_step(_RETURN, ALLOW))
    return b"".join(program)


def _answered(listed: list[int], answer: int) -> list[bytes]:
    """Let the system calls of these ascending numbers fail with the error `answer`.

    Neighbours are tested together: the kernel translates the program anew for every box, in time that grows with its
    length."""
    ranges: list[tuple[int, int]] = []
    for number in listed:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = ranges[-1][0], number
        else:
            ranges.append((number, number))
    steps = [_step(_RETURN, ERRNO | answer)]
    for place, (first, last) in enumerate(reversed(ranges)):
        beyond = 1 if place == 0 else 0  # what passes the last test skips the answer
        if first == last:
            steps = [_step(_EQUAL, first, then=len(steps) - 1, otherwise=beyond), *steps]
        else:
            steps = [_step(_AT_LEAST, last + 1, then=beyond, otherwise=len(steps) - 1), *steps]
            steps = [_step(_AT_LEAST, first, otherwise=beyond + 1), *steps]
    return steps


def _only_with(number: int, allowed: list[int], answer: int) -> list[bytes]:
    """Allow system call `number` only if its first argument is one of `allowed`; otherwise it fails with the error
    `answer`."""
    return [
        _step(_EQUAL, number, otherwise=len(allowed) + 3),
        _step(_LOAD, _FIRST_ARGUMENT),
        *(_step(_EQUAL, value, then=len(allowed) - place) for place, value in enumerate(allowed)),
        _step(_RETURN, ERRNO | answer),
        _step(_RETURN, ALLOW),
    ]


def _never_with(number: int, forbidden: dict[int, list[int]], answer: int, *, test: int = _EQUAL) -> list[bytes]:
    """Let system call `number` fail with the error `answer` if its arguments are forbidden. `forbidden` maps an
    argument to values. The call fails if each of these arguments passes the comparison `test` with one of its
    values."""
    checks = [_step(_RETURN, ERRNO | answer), _step(_RETURN, ALLOW)]
    for argument, values in reversed(forbidden.items()):
        *others, last = values
        tests = [_step(test, value, then=len(others) - place) for place, value in enumerate(others)]
        checks = [_step(_LOAD, argument), *tests, _step(test, last, otherwise=len(checks) - 1), *checks]
    return [_step(_EQUAL, number, otherwise=len(checks)), *checks]
