"""Harbor tasks, run: test.sh in a fresh box, its reward a verdict, and solve.sh as a reference.

What a foreign task's own script says is `open`: it holds as far as its box does."""

from etude.tasks.verifiers.harbor.reward import BadReward, Reward, parse_reward
from etude.tasks.verifiers.harbor.solving import reference_of
from etude.tasks.verifiers.harbor.steps import grade_steps, step_tasks
from etude.tasks.verifiers.harbor.verifier import HarborVerifier, conclude

__all__ = [
    "BadReward",
    "HarborVerifier",
    "Reward",
    "conclude",
    "grade_steps",
    "parse_reward",
    "reference_of",
    "step_tasks",
]
