from __future__ import annotations

import errno
import json
import os
import socket
import struct
from pathlib import Path

import pytest

from etude.sandbox import RequestRefused
from etude.sandbox.images.store import check_workdir
from etude.sandbox.inside import kernel, seccomp


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_filter_is_well_formed(machine: str) -> None:
    program = seccomp.build_program(machine)
    steps = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    for index, (code, then, otherwise, _) in enumerate(steps):
        if code & 7 == 5:  # A jump stays inside.
            assert index + 1 + max(then, otherwise) < len(steps)
    assert steps[-1][0] == 6
    named = {name for group in ("denied", "absent") for names in DATA[group].values() for name in names}
    assert named <= set(DATA["numbers"]["x86_64"])
    assert named - {"iopl", "ioperm"} <= set(DATA["numbers"]["aarch64"])


DATA = json.loads(Path(seccomp.__file__).with_name("seccomp.json").read_text())


def answer_of(program: bytes, machine: str, call: str | int, *arguments: int) -> int:
    """Run a seccomp program as the kernel would: 0 if the call is made, else its error."""
    seen = struct.pack(
        "=IIQ6Q",
        DATA["numbers"][machine][call] if isinstance(call, str) else call,
        DATA["architectures"][machine],
        0,
        *arguments,
        *[0] * (6 - len(arguments)),
    )
    value, at = 0, 0
    while True:
        code, then, otherwise, operand = struct.unpack_from("=HBBI", program, 8 * at)
        at += 1
        if code == 0x20:
            (value,) = struct.unpack_from("=I", seen, operand)
        elif code == 0x06:
            return 0 if operand == seccomp.ALLOW else operand ^ seccomp.ERRNO
        else:
            at += then if {0x15: value == operand, 0x35: value >= operand, 0x45: value & operand}[code] else otherwise


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("root_alone", [False, True])
def test_listed_calls_fail_and_no_others(machine: str, root_alone: bool) -> None:
    numbers, program = DATA["numbers"][machine], seccomp.build_program(machine, root_alone=root_alone)
    expected = {numbers["unshare"]: errno.EPERM, numbers["socket"]: errno.EAFNOSUPPORT}  # with a first argument of 0
    for group, error in (("denied", errno.EPERM), ("absent", errno.ENOSYS)):
        named = (name for names in DATA[group].values() for name in names)
        expected |= {numbers[name]: error for name in named if name in numbers}
    answers = {number: answer_of(program, machine, number, 0) for number in (*range(1000), 2**30 - 1)}
    assert {number: answer for number, answer in answers.items() if answer} == expected


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize(
    ("answer", "call", "arguments"),
    [
        (0, "socket", (socket.AF_INET,)),
        (errno.EAFNOSUPPORT, "socket", (40,)),
        (0, "setsockopt", (3, socket.SOL_SOCKET, socket.SO_REUSEADDR)),
        (0, "setsockopt", (3, socket.IPPROTO_IPV6, 26)),
        *((errno.EPERM, "setsockopt", (3, socket.SOL_SOCKET, option)) for option in (26, 51)),
        (errno.ENOSYS, "seccomp", (1, 0)),
        (errno.EINVAL, "prctl", (22, 2)),
        (0, "prctl", (38, 1)),
        (0, "clone", (17,)),
        (errno.EPERM, "clone", (17 | kernel.CLONE_NEWUSER,)),
        (0, "mmap", (0, 1 << 21, 3, 0x22)),
        (errno.ENOMEM, "mmap", (0, 1 << 21, 3, 0x22 | 0x40000 | 21 << 26)),
        (0, "memfd_create", (1, os.MFD_CLOEXEC)),
        (errno.EINVAL, "memfd_create", (1, os.MFD_CLOEXEC | os.MFD_HUGETLB)),
        (0, "shmget", (0, 1 << 21, 0o600)),
        (errno.ENOMEM, "shmget", (0, 1 << 21, 0o4600)),
    ],
)
def test_what_a_command_may_call(machine: str, answer: int, call: str, arguments: tuple[int, ...]) -> None:
    assert answer_of(seccomp.build_program(machine), machine, call, *arguments) == answer


@pytest.mark.parametrize("workdir", ["", "work", "/", "/usr/x", "/proc", "/a/../b", "/a\0"])
def test_bad_workdirs_are_refused(workdir: str) -> None:
    with pytest.raises(RequestRefused):
        check_workdir(workdir)
