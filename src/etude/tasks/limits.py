"""Limits of a task's gradings: three times what its valid solutions used when the gate ran them, but at least FLOORS.

The gate (the check that a task can be used) stores these limits in the task's evidence/gate.json, so that task.toml
stays as its author wrote it. They apply only while the task is unchanged since then, and can only tighten the task's
own limits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace

from etude.tasks.directory import gated_digest
from etude.tasks.task import Task

EVIDENCE = "evidence/gate.json"
MARGIN = 3
FLOORS = {"verifier_seconds": 10.0, "cpu_seconds": 5.0, "memory_mb": 256.0}
"""Lowest limits, however little the gate measured: room for a machine several times slower than the gate's, and for the
memory that an interpreter needs before any test runs."""
_SUITE = {"seconds": ("cpu_seconds", 60), "memory_mb": ("memory_mb", 1024)}
_BUILD = {"seconds": ("cpu_seconds", 30), "memory_mb": ("memory_mb", 512)}
_OF_VERIFIER = {
    **dict.fromkeys(("tests", "swebench", "refactor", "migration"), _SUITE),
    "mutation": {"seconds": ("cpu_seconds", 10), "memory_mb": ("memory_mb", 256)},
    **dict.fromkeys(("script", "workflow"), _BUILD),
    # A builder's CPU time is not accounted to a box: wall-clock time is all that was measured.
    "dockerfile": {**_BUILD, "seconds": ("verifier_seconds", 30)},
}
"""Settings of each verifier type that a measured limit can tighten. Each setting maps to the name of the measured limit
and the setting's default. The measured `cpu_seconds` are those of the box that used the most."""


def limits_from(seconds: float, cpu_seconds: float, memory_bytes: int) -> dict[str, float]:
    """Return MARGIN times each measured maximum over all runs of valid solutions, but at least FLOORS. A maximum of 0
    was not measured and sets no limit."""
    seen = {"verifier_seconds": seconds, "cpu_seconds": cpu_seconds, "memory_mb": memory_bytes / 2**20}
    return {name: max(FLOORS[name], float(math.ceil(MARGIN * most))) for name, most in seen.items() if most > 0}


def with_measured_limits(task: Task) -> Task:
    """Return the task with its limits lowered to those that the gate (the check that a task can be used) measured.
    Return the task itself if the gate has measured none for the task's present state."""
    limits = _stored(task)
    if not limits:
        return task
    seconds = min(task.limits.verifier_seconds, limits.get("verifier_seconds", math.inf))
    keys = _OF_VERIFIER.get(str(task.verifier.get("type")), {})
    tighter = {
        key: _smaller_limit(task.verifier.get(key, usual), limits[name])
        for key, (name, usual) in keys.items()
        if name in limits
    }
    return replace(
        task,
        limits=replace(task.limits, verifier_seconds=seconds),
        verifier={**task.verifier, **tighter},
    )


def _smaller_limit(own: object, measured: float) -> float | int:
    """Return the smaller of a setting's own value and the measured limit; the measured limit if the own value is no
    number. It is an int if it is whole, because the setting `memory_mb` must be an int."""
    least = min(float(own), measured) if isinstance(own, int | float) else measured
    return int(least) if least == int(least) else least


def _stored(task: Task) -> Mapping[str, float]:
    try:
        row = json.loads((task.directory / EVIDENCE).read_bytes())
        limits, digest = dict(row["limits"]), row["digest"]
        good = all(isinstance(value, int | float) and value > 0 for value in limits.values())
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return limits if good and digest == gated_digest(task) else {}
