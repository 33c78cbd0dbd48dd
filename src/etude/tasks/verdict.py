"""The Verdict class: what the grader concluded, with its evidence."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Judgement(StrEnum):
    """The four conclusions of a grading."""

    PASS = "pass"
    FAIL = "fail"
    ERROR = "error"
    """The infrastructure failed, so the result says nothing about the model. The grading is retried. If the retry fails
    too, the rollout is masked, counted and shown."""
    SUSPECT = "suspect"
    """The diff passed in a way that is impossible for an honest solution."""

    @property
    def valid(self) -> bool:
        """Whether this judgement may enter an advantage or a score."""
        return self in (Judgement.PASS, Judgement.FAIL, Judgement.SUSPECT)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a grading measured and observed."""

    exit_code: int | None = None
    tests_expected: int = 0
    tests_passed: int = 0
    failed_tests: tuple[str, ...] = ()
    touched_protected: tuple[str, ...] = ()
    """Files of the test surface that the diff touched. The grader restores them before grading."""
    report_digest: str = ""
    seconds: float = 0.0
    log: str = ""
    """The end of the verifier's output."""
    sealed: bool = False
    """Whether the verdict holds even against an agent that knows the grader's source."""
    controls: int = 0
    """Number of negative controls: tests mixed in among the others that an honest solution fails. A diff that passes
    one is suspect."""
    withheld: int = 0
    """Number of comparisons made outside the box, with expected values that never entered it."""
    controls_passed: tuple[str, ...] = ()
    """Negative controls that the diff passed, by test id."""
    score: float | None = None
    """A finer result than pass or fail, for verifiers that measure one, such as the share of mutants killed or defects
    found."""
    cpu_seconds: float = 0.0
    """CPU time of the box that used the most."""
    memory_bytes: int = 0
    """Peak memory of the verifier's boxes; 0 where it was not measured."""
    timed_out: bool = False
    """Whether the run reached its wall-clock limit. The code may have waited for something that never came."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one grading."""

    judgement: Judgement
    reason: str
    """One line for people to read."""
    evidence: Evidence = field(default_factory=Evidence)

    @property
    def passed(self) -> bool:
        return self.judgement is Judgement.PASS
