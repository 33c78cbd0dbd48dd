"""A pytest plugin for mutants.py: how long each test took and whether it failed.

ETUDE_TEST_NOTES names the file that gets one JSON line per test.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

_seconds: dict[str, float] = {}


def pytest_runtest_logreport(report: Any) -> None:
    """Called in each worker and again in the process that leads them; the latter writes."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration
    if report.failed or report.when == "teardown":
        row = {"test": report.nodeid, "failed": report.failed, "seconds": round(_seconds[report.nodeid], 3)}
        with Path(os.environ["ETUDE_TEST_NOTES"]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
