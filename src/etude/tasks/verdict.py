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


@dataclass(frozen=True, slots=True)
class Verdict:
    judgement: Judgement
    reason: str
    """One line for people."""
    evidence: Evidence = field(default_factory=Evidence)

    @property
    def passed(self) -> bool:
        return self.judgement is Judgement.PASS
