"""What the gate found out about one task, and the outcome, which is computed from these findings alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from etude.tasks.task import Task
from etude.tasks.verdict import Judgement, Verdict

NOTHING, REFERENCE = "nothing", "reference"


class GateOutcome(StrEnum):
    """What the gate decides about a task: SURVIVED, or the reason why it may not be used."""

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
    """The result of one grading that the gate ran."""

    what: str
    """What was graded: "nothing", "reference", or the name of the file with another solution."""
    conditions: str
    judgement: Judgement
    reason: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    tried: int = 1
    """Number of attempts at this grading; more than 1 after infrastructure faults."""
    set_aside: bool = False
    """Whether the run does not count, because it timed out under conditions that can themselves cause a timeout (those
    with a fallback). The next run, under the fallback conditions, counts in its place."""

    @property
    def as_expected(self) -> bool:
        """Whether the run ended as required: the empty diff failed, or a solution passed."""
        return self.judgement is (Judgement.FAIL if self.what == NOTHING else Judgement.PASS)


@dataclass(frozen=True, slots=True)
class GateResult:
    """Everything that the gate found out about one task."""

    task: str
    digest: str
    """The task's `gated_digest`. Evidence with another digest is about an earlier state of the task and says nothing
    about the present one."""
    source: str = ""
    runs: tuple[Run, ...] = ()
    leaks: tuple[str, ...] = ()
    """Files in which the task's environment shows its solution or hidden tests."""
    cheats: tuple[str, ...] = ()
    """Names of the cheats (agents that try to pass without solving anything) that succeeded in the task's environment.
    """
    broken: str = ""
    sealed: bool = False
    controls: int = 0
    """Number of negative controls (checks that must fail) that failed as required, summed over the passed runs of all
    valid solutions."""
    withheld: int = 0
    """Number of comparisons of a result with its expected value that were made outside the box, which never contained
    the expected value. Summed over the passed runs of all valid solutions."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Limits for later gradings of the task: three times the most that a valid solution used in any run (see
    `limits_from`).
    """
    seconds: float = 0.0

    @property
    def counted(self) -> tuple[Run, ...]:
        """The runs that count towards the outcome: all except timeouts that were set aside, because the conditions of
        the run may have caused them."""
        return tuple(run for run in self.runs if not run.set_aside)

    @property
    def outcome(self) -> GateOutcome:
        """The gate's decision. If there are several problems, it is the first in the order of `GateOutcome`."""
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
        """Whether the gate has decided about the task: the task is broken (its author made a mistake), or there are
        counted runs and none of them ended in an infrastructure fault."""
        judged = bool(self.counted) and all(run.judgement is not Judgement.ERROR for run in self.counted)
        return bool(self.broken) or judged

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the task may not be used, in sentences for people; empty if it survived."""
        runs = [f"{run.what} ({run.conditions}): {run.reason}" for run in self.counted if not run.as_expected]
        cheats = [f"the cheat {name} succeeds" for name in self.cheats]
        return tuple(filter(None, (self.broken, *self.leaks, *runs, *cheats)))

    def row(self) -> dict[str, Any]:
        """Return the result as a JSON row, from which `read` restores the result. The keys `survived` and `fate` (the
        outcome, for people) are derived from the rest, so `read` ignores them."""
        names = ("task", "digest", "source", "broken", "sealed", "controls", "withheld", "seconds")
        kept = {name: getattr(self, name) for name in names}
        runs = [{name: getattr(run, name) for name in Run.__slots__} for run in self.runs]
        lists = {"leaks": list(self.leaks), "cheats": list(self.cheats), "limits": dict(self.limits)}
        return {"survived": self.survived, "fate": self.outcome.value, **kept, **lists, "runs": runs}

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> GateResult:
        """Parse a row that the method `row` wrote. Raises ValueError, KeyError or TypeError for any other row."""
        runs = tuple(Run(**{**run, "judgement": Judgement(run["judgement"])}) for run in row["runs"])
        known = {name: row[name] for name in cls.__slots__ if name not in ("runs", "leaks", "cheats")}
        return cls(**known, runs=runs, leaks=tuple(row["leaks"]), cheats=tuple(row["cheats"]))


def run_of(what: str, conditions: str, verdict: Verdict, tried: int) -> Run:
    seen = verdict.evidence
    return Run(
        what,
        conditions,
        verdict.judgement,
        verdict.reason,
        round(seen.seconds, 4),
        round(seen.cpu_seconds, 4),
        seen.memory_bytes,
        tried,
    )


def source_of_task(task: Task) -> str:
    return str(task.provenance.get("source") or "own")


def by_source(results: Iterable[GateResult]) -> dict[str, dict[str, int]]:
    """Count, for each task source, all its tasks, those that survived the gate, and those with each other outcome."""
    found: dict[str, Counter[str]] = {}
    for result in results:
        counts = found.setdefault(result.source, Counter(tasks=0, survived=0))
        counts.update(("tasks", result.outcome.value))
    return {source: dict(counts) for source, counts in sorted(found.items())}
