"""The Verdict class: what the grader concluded, with its evidence."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Judgement(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    ERROR = "error"
    """The infrastructure failed, which says nothing about the model. Callers retry; a rollout that fails every time is
    masked, counted and shown."""
    SUSPECT = "suspect"
    """The diff passed in a way that is impossible for an honest solution."""

    @property
    def valid(self) -> bool:
        """Whether this judgement counts in advantages and scores. Only `error` does not."""
        return self in (Judgement.PASS, Judgement.FAIL, Judgement.SUSPECT)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a grading measured and observed."""

    exit_code: int | None = None
    tests_expected: int = 0
    tests_passed: int = 0
    failed_tests: tuple[str, ...] = ()
    touched_protected: tuple[str, ...] = ()
    """Tests and their configuration that the diff touched; the grader restored them."""
    report_digest: str = ""
    seconds: float = 0.0
    log: str = ""
    """The end of the verifier's output."""
    sealed: bool = False
    """Whether the verdict is safe against forgery, even by an agent that knows the grader's source. (A sealed image is
    something else: one without traces of the solution.)"""
    controls: int = 0
    """Number of negative controls: extra tests that a correct solution fails. A diff that passes one is suspect."""
    withheld: int = 0
    """Number of results that were compared with expected values that never entered the box."""
    controls_passed: tuple[str, ...] = ()
    """Ids of the negative controls that the diff passed."""
    score: float | None = None
    """A finer result than pass or fail, for verifiers that measure one, such as the share of mutants killed."""
    cpu_seconds: float = 0.0
    """CPU time of the box that used the most."""
    memory_bytes: int = 0
    """Peak memory of the verifier's boxes; 0 if it was not measured."""
    timed_out: bool = False
    """Whether the run reached its wall-clock limit."""
    starved: bool = False
    """Whether the run reached that limit because the host gave it too little CPU time."""


@dataclass(frozen=True, slots=True)
class Verdict:
    judgement: Judgement
    reason: str
    """Reason of the judgement: one line for people to read."""
    evidence: Evidence = field(default_factory=Evidence)

    @property
    def passed(self) -> bool:
        return self.judgement is Judgement.PASS
