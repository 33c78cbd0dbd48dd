"""Runs Harbor tasks: test.sh in a fresh box, its reward as the verdict, and solve.sh as the reference.

The verdict of a foreign task's own script is `open`: code in the box that the script shares could forge it.
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
