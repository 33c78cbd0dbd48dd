"""Grades tasks in the Harbor format: runs test.sh in a fresh box, and takes its reward as the verdict. The task's
solve.sh gives the reference solution.

If test.sh shares its box with the code under test, that code could forge the reward, so the verdict is marked as open.
"""

from etude.tasks.verifiers.harbor.solving import reference_of
from etude.tasks.verifiers.harbor.steps import grade_steps, step_tasks
from etude.tasks.verifiers.harbor.verifier import HarborVerifier

__all__ = [
    "HarborVerifier",
    "grade_steps",
    "reference_of",
    "step_tasks",
]
