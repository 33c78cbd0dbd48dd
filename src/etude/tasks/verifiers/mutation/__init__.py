"""The verifier of tasks in which the agent writes tests: `type = "mutation"`.

The tests must pass on the original library. Their score is the share of hidden mutants (faulty copies of the library)
on which they fail.
"""

from etude.tasks.verifiers.mutation.mutants import Mutant, mutants_of
from etude.tasks.verifiers.mutation.rewrites import rewritten
from etude.tasks.verifiers.mutation.store import dump_mutants, load_mutants
from etude.tasks.verifiers.mutation.verifier import MutationVerifier, chance

__all__ = ["Mutant", "MutationVerifier", "chance", "dump_mutants", "load_mutants", "mutants_of", "rewritten"]
