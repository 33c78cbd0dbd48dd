"""The Verdict noun: what the grader concluded, with its evidence."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Judgement(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    ERROR = "error"
    """Ours, never the model's: retried, then masked, counted and shown."""
    SUSPECT = "suspect"
    """Passed in a way that an honest solution cannot."""

    @property
    def valid(self) -> bool:
        """May this judgement enter an advantage or a score?"""
        return self in (Judgement.PASS, Judgement.FAIL, Judgement.SUSPECT)


@dataclass(frozen=True, slots=True)
class Evidence:
    exit_code: int | None = None
    tests_expected: int = 0
    tests_passed: int = 0
    failed_tests: tuple[str, ...] = ()
    touched_protected: tuple[str, ...] = ()
    """Files of the test surface that the diff touched: reset before grading."""
    report_digest: str = ""
    seconds: float = 0.0
    log: str = ""
    """The end of the verifier's output."""
    sealed: bool = False
    """Whether the verdict holds against an agent that knows the grader's source."""
    controls: int = 0
    """Tests among the others that an honest solution fails: whoever passes one is suspect."""
    withheld: int = 0
    """Comparisons that were made out here, with values that the box was never told."""
    controls_passed: tuple[str, ...] = ()
    score: float | None = None
    """Where a verifier measures more than pass or fail: mutants killed, defects found."""
    cpu_seconds: float = 0.0
    """Of the box that used most."""
    memory_bytes: int = 0
    """The most that the verifier's boxes held; 0 where nobody measured."""
    timed_out: bool = False
    """The wall clock expired: what was run may have waited for what never came."""


@dataclass(frozen=True, slots=True)
class Verdict:
    judgement: Judgement
    reason: str
    """One line for people."""
    evidence: Evidence = field(default_factory=Evidence)

    @property
    def passed(self) -> bool:
        return self.judgement is Judgement.PASS
