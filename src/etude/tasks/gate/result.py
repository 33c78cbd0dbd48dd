"""What the gate found out about one task, and the outcome, which is computed from these findings alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from etude.tasks.task import Task
from etude.tasks.verdict import Judgement

NOTHING, REFERENCE = "nothing", "reference"


class GateOutcome(StrEnum):
    """What the gate decides about a task: that it may be used, or why not."""

    SURVIVED = "survived"
    BROKEN = "cannot be graded"
    """The task's author made a mistake: a malformed file, or a Dockerfile that does not build."""
    UNDECIDED = "undecided"
    """An infrastructure fault occurred, even after retries; the task is gated anew next time."""
    LEAKS = "shows its solution"
    EMPTY_PASSES = "doing nothing does not fail"
    REFERENCE_FAILS = "the reference does not pass"
    FLAKY = "the reference passes some times only"
    OTHER_FAILS = "another valid solution does not pass"
    CHEATED = "a cheat succeeds"


@dataclass(frozen=True, slots=True)
class Run:
    what: str
    """What was graded: "nothing", "reference", or the file name of another solution."""
    conditions: str
    judgement: Judgement
    reason: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    tried: int = 1
    """Number of attempts; more than 1 after infrastructure faults."""
    set_aside: bool = False
    """Whether the run does not count, because it timed out under conditions that can themselves cause a timeout. The
    next run, under their fallback, counts in its place."""

    @property
    def as_expected(self) -> bool:
        return self.judgement is (Judgement.FAIL if self.what == NOTHING else Judgement.PASS)


@dataclass(frozen=True, slots=True)
class GateResult:
    task: str
    digest: str
    """The task's `gated_digest`. Evidence with another digest is about an earlier state of the task."""
    source: str = ""
    runs: tuple[Run, ...] = ()
    leaks: tuple[str, ...] = ()
    """Files of the environment that show the solution or hidden tests."""
    cheats: tuple[str, ...] = ()
    """Names of the cheats (agents that try to pass without solving anything) that succeeded."""
    broken: str = ""
    sealed: bool = False
    controls: int = 0
    """Negative controls (checks that must fail) that did fail, summed over the passed runs of all valid solutions."""
    withheld: int = 0
    """Number of results compared with expected values that never entered the box, summed over the passed runs of all
    valid solutions."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Limits for later gradings of the task (see `limits_from`)."""
    seconds: float = 0.0

    @property
    def counted(self) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if not run.set_aside)

    @property
    def outcome(self) -> GateOutcome:
        """What the gate decides. Of several problems, the first in the order of `GateOutcome` counts."""
        nothing = [run for run in self.counted if run.what == NOTHING]
        reference = [run for run in self.counted if run.what == REFERENCE]
        if self.broken:
            return GateOutcome.BROKEN
        if not self.decided:
            return GateOutcome.UNDECIDED
        if self.leaks:
            return GateOutcome.LEAKS
        if not all(run.as_expected for run in nothing):
            return GateOutcome.EMPTY_PASSES
        if not all(run.as_expected for run in reference):
            return GateOutcome.FLAKY if any(run.as_expected for run in reference) else GateOutcome.REFERENCE_FAILS
        if not all(run.as_expected for run in self.counted):
            return GateOutcome.OTHER_FAILS
        return GateOutcome.CHEATED if self.cheats else GateOutcome.SURVIVED

    @property
    def survived(self) -> bool:
        return self.outcome is GateOutcome.SURVIVED

    @property
    def decided(self) -> bool:
        """Whether the gate reached a decision: the task is broken, or there are runs that count (are not set aside) and
        none of them ended in an infrastructure fault."""
        judged = bool(self.counted) and all(run.judgement is not Judgement.ERROR for run in self.counted)
        return bool(self.broken) or judged

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the task may not be used, in sentences for people; empty if it survived."""
        runs = [f"{run.what} ({run.conditions}): {run.reason}" for run in self.counted if not run.as_expected]
        cheats = [f"the cheat {name} succeeds" for name in self.cheats]
        return tuple(filter(None, (self.broken, *self.leaks, *runs, *cheats)))

    def row(self) -> dict[str, Any]:
        """Return this result as a row for a JSON file, which `read` parses. Its fields `survived` and `fate` (the
        outcome) follow from the other fields, and are there for people."""
        return {"survived": self.survived, "fate": self.outcome.value, **asdict(self)}

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> GateResult:
        """Parse a row that `row` wrote. Raises ValueError, KeyError or TypeError for a row of another form."""
        runs = tuple(Run(**{**run, "judgement": Judgement(run["judgement"])}) for run in row["runs"])
        known = {name: row[name] for name in cls.__slots__ if name not in ("runs", "leaks", "cheats")}
        return cls(**known, runs=runs, leaks=tuple(row["leaks"]), cheats=tuple(row["cheats"]))


def source_of_task(task: Task) -> str:
    return str(task.provenance.get("source") or "own")


def by_source(results: Iterable[GateResult]) -> dict[str, dict[str, int]]:
    """Count, for each task source, its tasks, those that survived, the open ones of these (whose verdicts are not
    sealed), and the tasks with each other outcome."""
    found: dict[str, Counter[str]] = {}
    for result in results:
        counts = found.setdefault(result.source, Counter(tasks=0, survived=0, open=0))
        counts.update(("tasks", result.outcome.value))
        counts["open"] += result.survived and not result.sealed
    return {source: dict(counts) for source, counts in sorted(found.items())}
