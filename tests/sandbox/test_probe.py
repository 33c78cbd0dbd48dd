from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from etude.sandbox import RequestRefused
from etude.sandbox.images.store import check_workdir
from etude.sandbox.inside import seccomp


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_filter_is_well_formed(machine: str) -> None:
    program = seccomp.build_program(machine)
    steps = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    for index, (code, then, otherwise, _) in enumerate(steps):
        if code & 7 == 5:  # A jump stays inside.
            assert index + 1 + max(then, otherwise) < len(steps)
    assert steps[-1][0] == 6
    data = json.loads(Path(seccomp.__file__).with_name("seccomp.json").read_text())
    named = {name for group in ("denied", "absent") for names in data[group].values() for name in names}
    assert named <= set(data["numbers"]["x86_64"])
    assert named - {"iopl", "ioperm"} <= set(data["numbers"]["aarch64"])


@pytest.mark.parametrize("workdir", ["", "work", "/", "/usr/x", "/proc", "/a/../b", "/a\0"])
def test_bad_workdirs_are_refused(workdir: str) -> None:
    with pytest.raises(RequestRefused):
        check_workdir(workdir)
