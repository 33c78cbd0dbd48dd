"""Describes tasks and verdicts in a few words."""

from __future__ import annotations

from pathlib import Path

from etude.cli.options import STORE
from etude.cli.tasks.find_tasks import kept_environments
from etude.tasks import Task, TaskError, Verdict, open_verifier
from etude.tasks.gate import stored_evidence
from etude.tasks.verifiers import ProvingVerifier


def verifier_name(task: Task) -> str:
    try:
        return str(task.verifier.get("type") or type(open_verifier(task)).__name__.removesuffix("Verifier").lower())
    except TaskError:
        return "?"


def grading_of(task: Task, store: Path = STORE) -> str:
    """Return "sealed" if verdicts on the task hold even against an agent that has read the grader's code, and "open" if
    not. Other texts say why this is unknown.

    A hidden test suite with a reference solution is tried out before its first verdict, and only these trial runs can
    tell which of the two it is. Nothing is run here: the answer comes from the stored results of the gate, and of
    earlier gradings with the same store.
    """
    if (gated := stored_evidence(task)) and gated.runs:
        return "sealed" if gated.sealed else "open"
    try:
        verifier = open_verifier(task)
    except TaskError:
        return "not gradable"
    known = isinstance(verifier, ProvingVerifier) and verifier.load_stored_proof(kept_environments(store))
    if verifier.sealed:
        return "sealed"
    if known:
        return "open"
    return "not run yet" if verifier_name(task) in ("tests", "swebench") else "open"


def verdict_line(verdict: Verdict) -> str:
    trust = "sealed" if verdict.evidence.sealed else "open"
    seconds = f"{verdict.evidence.seconds:.2f} s"
    return f"{verdict.judgement.value.upper():<8} {verdict.reason}  ({trust}, {seconds})"
