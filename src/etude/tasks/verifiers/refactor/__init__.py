"""The agent restructures code: `type = "refactor"`.

Its tests still pass, its interface is what it was, and there is less to read than before."""

from etude.tasks.verifiers.refactor.measure import Measures, measure
from etude.tasks.verifiers.refactor.verifier import RefactorVerifier

__all__ = ["Measures", "RefactorVerifier", "measure"]
