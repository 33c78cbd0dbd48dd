"""The verifier of tasks in which the agent restructures code: `type = "refactor"`.

The tests must still pass, the public interface must be unchanged, and the code must be shorter and less repetitive than
before.
"""

from etude.tasks.verifiers.refactor.measure import Measures, measure
from etude.tasks.verifiers.refactor.verifier import RefactorVerifier

__all__ = ["Measures", "RefactorVerifier", "measure"]
