"""Grades tasks in the Harbor format by the reward of their test.sh. Their solve.sh gives the reference solution."""

from etude.tasks.verifiers.harbor.solving import reference_of
from etude.tasks.verifiers.harbor.steps import grade_steps, step_tasks
from etude.tasks.verifiers.harbor.verifier import HarborVerifier

__all__ = [
    "HarborVerifier",
    "grade_steps",
    "reference_of",
    "step_tasks",
]
