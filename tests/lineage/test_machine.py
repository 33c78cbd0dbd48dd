"""What a run says of its machine: enough to judge its times by, nothing that names it."""

from __future__ import annotations

import os
import platform

from etude.lineage import this_machine
from etude.lineage.machine import _kind


def test_it_tells_size_and_kind_and_no_name(tmp_path) -> None:
    found = this_machine()
    assert found == {"cpus": len(os.sched_getaffinity(0)), "kind": _kind(), "memory_gib": found["memory_gib"]}
    assert found["memory_gib"] > 0.1
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nmodel name\t: Some CPU: at 2 GHz\nmodel name\t: Other\n")
    assert _kind(file) == "Some CPU: at 2 GHz"
    file.write_text("processor\t: 0\n")
    assert _kind(file) == _kind(tmp_path / "none") == platform.machine()
