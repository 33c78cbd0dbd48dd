"""What a run says of its machine: enough to judge its times by, nothing that names it."""

from __future__ import annotations

import os
import platform

from etude.lineage import this_machine
from etude.lineage.machine import _kind


def test_it_tells_size_and_kind() -> None:
    found = this_machine()
    assert found["cpus"] == len(os.sched_getaffinity(0))
    assert found["memory_gib"] > 0.1
    assert found["kind"] == _kind()
    assert found.keys() == {"cpus", "memory_gib", "kind"}, "no name, no address"


def test_the_kind_is_the_processors_name_or_else_its_architecture(tmp_path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nmodel name\t: Some CPU: at 2 GHz\nmodel name\t: Other\n")
    assert _kind(file) == "Some CPU: at 2 GHz"
    file.write_text("processor\t: 0\n")
    assert _kind(file) == _kind(tmp_path / "none") == platform.machine()
