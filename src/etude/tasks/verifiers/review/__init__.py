"""The verifier of tasks in which the agent reviews a change: `type = "review"`."""

from __future__ import annotations

from etude.tasks.verifiers.review.findings import LIST, TEXT, Finding, ReviewError, read_review
from etude.tasks.verifiers.review.proof import problem_of_example
from etude.tasks.verifiers.review.score import Defect, Score, chance_of_guess, score_of
from etude.tasks.verifiers.review.verifier import FILE, ReviewVerifier

__all__ = [
    "FILE",
    "LIST",
    "TEXT",
    "Defect",
    "Finding",
    "ReviewError",
    "ReviewVerifier",
    "Score",
    "chance_of_guess",
    "problem_of_example",
    "read_review",
    "score_of",
]
