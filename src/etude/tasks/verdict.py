"""The Verdict class: what the grader concluded, with its evidence."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Judgement(StrEnum):
    """The four possible conclusions of a grading."""

    PASS = "pass"
    FAIL = "fail"
    ERROR = "error"
    """The infrastructure failed, so the result says nothing about the model. Callers retry; a rollout that fails every
    time is masked, counted and shown.
    """
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
    """Protected files (tests and their configuration) that the diff touched. The grader restores them
    before grading.
    """
    report_digest: str = ""
    seconds: float = 0.0
    log: str = ""
    """The end of the verifier's output."""
    sealed: bool = False
    """Whether the verdict is safe against forgery, even by an agent that knows the grader's source. (A sealed image is
    something else: one without traces of the solution.)
    """
    controls: int = 0
    """Number of negative controls: extra tests, mixed in among the others, that a correct solution fails. A diff that
    passes one is suspect.
    """
    withheld: int = 0
    """Number of comparisons of a result with its expected value that were made outside the box. The expected values
    never entered the box."""
    controls_passed: tuple[str, ...] = ()
    """Ids of the negative controls (tests that must fail) that the diff passed."""
    score: float | None = None
    """A finer result than pass or fail, for verifiers that measure one: for example the share of mutants killed or of
    defects found.
    """
    cpu_seconds: float = 0.0
    """CPU time, in seconds, of a single box: the one that used the most among all boxes of the grading."""
    memory_bytes: int = 0
    """Peak memory of the verifier's boxes, in bytes; 0 if it was not measured."""
    timed_out: bool = False
    """Whether the run reached its wall-clock limit, for example because the code waited for something
    that never came.
    """


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one grading: a judgement, the reason for it and the evidence."""

    judgement: Judgement
    reason: str
    """Reason for the judgement, in one line for people to read."""
    evidence: Evidence = field(default_factory=Evidence)

    @property
    def passed(self) -> bool:
        return self.judgement is Judgement.PASS
