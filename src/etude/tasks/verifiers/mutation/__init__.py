"""The verifier of tasks in which the agent writes tests: `type = "mutation"`."""

from etude.tasks.verifiers.mutation.mutants import Mutant, dump_mutants, load_mutants, mutants_of
from etude.tasks.verifiers.mutation.rewrites import rewritten
from etude.tasks.verifiers.mutation.verifier import MutationVerifier, chance

__all__ = ["Mutant", "MutationVerifier", "chance", "dump_mutants", "load_mutants", "mutants_of", "rewritten"]
