"""The verifier of tasks in which the agent restructures code: `type = "refactor"`."""

from etude.tasks.verifiers.refactor.measure import Measures, measure
from etude.tasks.verifiers.refactor.verifier import RefactorVerifier

__all__ = ["Measures", "RefactorVerifier", "measure"]
