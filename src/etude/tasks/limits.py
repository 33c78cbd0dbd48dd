"""Limits of a task's gradings: three times what its reference was seen to take when the task was gated.

They lie in the evidence and not in task.toml, which stays what its author wrote; they count as long as the task is what
was gated, and only ever tighten what the task says itself.
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
"""What a grading is given at least: a machine may be several times slower than the one that gated, an interpreter wants
memory before any test runs."""
_SUITE = {"seconds": ("cpu_seconds", 60), "memory_mb": ("memory_mb", 1024)}
_BUILD = {"seconds": ("cpu_seconds", 30), "memory_mb": ("memory_mb", 512)}
_OF_VERIFIER = {
    **dict.fromkeys(("tests", "swebench", "refactor", "migration"), _SUITE),
    "mutation": {"seconds": ("cpu_seconds", 10), "memory_mb": ("memory_mb", 256)},
    **dict.fromkeys(("script", "workflow"), _BUILD),
    # What a builder computes is no box's: the clock is all that was seen of it.
    "dockerfile": {**_BUILD, "seconds": ("verifier_seconds", 30)},
}
"""Keys of a verifier's own table, which of the limits they are, and what the verifier takes where the task says
nothing. CPU time was seen of all boxes of a grading together; that of one is no more."""


def limits_from(seconds: float, cpu_seconds: float, memory_bytes: int) -> dict[str, float]:
    """From the most that any run of a valid solution took. What nobody measured (0) is not limited."""
    seen = {"verifier_seconds": seconds, "cpu_seconds": cpu_seconds, "memory_mb": memory_bytes / 2**20}
    return {name: max(FLOORS[name], float(math.ceil(MARGIN * most))) for name, most in seen.items() if most > 0}


def limited(task: Task) -> Task:
    """The task as the gate limited it; itself where no evidence is about the task as it is now."""
    limits = _stored(task)
    if not limits:
        return task
    seconds = min(task.limits.verifier_seconds, limits.get("verifier_seconds", math.inf))
    keys = _OF_VERIFIER.get(str(task.verifier.get("type")), {})
    tighter = {
        key: _least(task.verifier.get(key, usual), limits[name])
        for key, (name, usual) in keys.items()
        if name in limits
    }
    return replace(
        task,
        limits=replace(task.limits, verifier_seconds=seconds),
        verifier={**task.verifier, **tighter},
    )


def _least(own: object, measured: float) -> float | int:
    """Whole numbers are both: `memory_mb` wants an int, `seconds` takes one."""
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
