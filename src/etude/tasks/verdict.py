"""The Verdict noun: what the grader concluded, with its evidence."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Judgement(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    ERROR = "error"
    """The infrastructure failed, never the model: the grading is retried, and if that fails too, masked, counted and
    shown."""
    SUSPECT = "suspect"
    """The diff passed in a way that an honest solution cannot."""

    @property
    def valid(self) -> bool:
        """Whether this judgement may enter an advantage or a score."""
        return self in (Judgement.PASS, Judgement.FAIL, Judgement.SUSPECT)


@dataclass(frozen=True, slots=True)
class Evidence:
    exit_code: int | None = None
    tests_expected: int = 0
    tests_passed: int = 0
    failed_tests: tuple[str, ...] = ()
    touched_protected: tuple[str, ...] = ()
    """Files of the test surface that the diff touched. They are reset before grading."""
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
    """Number of comparisons made outside the box, with expected values that the box was never given."""
    controls_passed: tuple[str, ...] = ()
    score: float | None = None
    """A finer result than pass or fail, where the verifier measures one: mutants killed, defects found."""
    cpu_seconds: float = 0.0
    """CPU time of the box that used most."""
    memory_bytes: int = 0
    """Peak memory of the verifier's boxes; 0 where it was not measured."""
    timed_out: bool = False
    """Whether the wall clock expired. The code may have waited for something that never came."""


@dataclass(frozen=True, slots=True)
class Verdict:
    judgement: Judgement
    reason: str
    """One line for people to read."""
    evidence: Evidence = field(default_factory=Evidence)

    @property
    def passed(self) -> bool:
        return self.judgement is Judgement.PASS
