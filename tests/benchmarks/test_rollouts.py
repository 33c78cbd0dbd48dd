"""What the benchmark of rollouts says of cores that had nothing to do."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import rollouts

from etude.journal import Journal


def test_idle_core_seconds_between_two_moments_are_told_by_who_waited(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "driver")
    half = {"seconds": 1.0, "cores": 2, "busy": 1.0, "used": {"engine": 1.0}, "engine_waited": 0.0}
    journal.event("cores", **half | {"busy": 0.0, "used": {}})
    begun = time.time()
    journal.event("wait", on="engine", seconds=1.0, deadline=9.0, outcome="done")
    journal.event("cores", **half)
    ended = time.time()
    journal.event("cores", **half | {"busy": 0.0, "used": {}})
    journal.close()
    found = rollouts.idle_by(tmp_path, begun, ended)
    assert found["driver for engine"] == pytest.approx(0.5, abs=0.01)
    assert sum(found.values()) == pytest.approx(0.5, abs=0.01), "what is not idle was used by the engine"
