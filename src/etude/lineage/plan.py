"""What a recipe would take, before it is run: parameters, memory, tokens and seconds per stage.

Seconds are what a token, a grading or a document takes on this machine (`probe`), times how many a stage is worth.
These weights hold no seconds of any machine: they were measured with the tiny recipe on two cores, by hand.
"""

from __future__ import annotations

from dataclasses import dataclass

from etude.corpus import code_bytes
from etude.lineage.probe import Pace, probe
from etude.model import ModelConfig
from etude.recipe import Recipe
from etude.rl.curve import evaluated_steps
from etude.tasks.sources.microrepo.bugs import SEEN_KINDS
from etude.training.compute import Compute, choose_compute

_BYTES_PER_PARAMETER = 4 + 8 + 4 + 2
"""fp32 master, two moments, gradient, and a bf16 copy."""
_STAGE_TOKENS = {"pretrain": 1.65, "long": 2.6, "mtp": 1.35, "sft": 3.0}
"""What a token of a stage takes, in tokens of the bare network: optimizer, draft heads, longer rows."""
_ROLLOUT_TOKENS = 0.7
"""A rollout takes about as long as training on this share of a context, sampling and RL's training together..."""
_TRIED_TOKENS = 0.5
"""...and in an evaluation, where nothing is trained."""
_ROLLOUT_GRADINGS, _TRIED_GRADINGS = 0.7, 1.0
"""What its boxes take, in gradings: equal changes are graded once, and an evaluation grades first edits too."""
_GATE_GRADINGS = 3.3
"""What gating a task takes beside its reference's gradings: one without change, a look for leaks, a busy machine."""
_SHOWN_GRADINGS, _EPISODE_GRADINGS = 2.2, 0.2
"""What a task takes that is demonstrated, since its episodes share what they run in boxes; and what each one adds."""
_CORPUS_DOCUMENTS = 1.7
"""A document that is made, compared, read for the vocabulary and tokenised, in documents that are made..."""
_CODE_DOCUMENTS = 1.8e-3
"""...and so a byte of code, which is parsed too."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    compute: Compute
    pace: Pace
    parameters: int
    active: int
    memory_bytes: float
    stages: list[tuple[str, int, float]]
    """Name, tokens, seconds."""


def plan_run(recipe: Recipe) -> RunPlan:
    compute = choose_compute(recipe.compute)
    pace = probe(recipe, compute)
    config = ModelConfig.from_recipe(recipe.model, recipe.tokenizer.vocab_size)
    count = config.parameter_count()
    longest = max(recipe.pretrain.batch * recipe.pretrain.length, recipe.rl.microbatch_tokens)
    activations = longest * (config.hidden_size * 40 * config.num_hidden_layers + config.vocab_size * 3) * 4
    memory = count.total * _BYTES_PER_PARAMETER + activations
    return RunPlan(compute, pace, count.total, count.active, memory, plan_stages(recipe, pace))


def plan_stages(recipe: Recipe, pace: Pace) -> list[tuple[str, int, float]]:
    """Name, tokens and seconds of every stage of the recipe's line, in order."""
    tasks, context, rl, test = recipe.tasks, recipe.engine.context, recipe.rl, recipe.evaluation

    def supervised(name: str, steps: int, batch: int, length: int) -> tuple[str, int, float]:
        tokens = steps * batch * length
        return name, tokens, tokens * _STAGE_TOKENS[name] * pace.token

    def tried(rollouts: int) -> tuple[int, float]:
        return rollouts * context, rollouts * (_TRIED_GRADINGS * pace.grading + _TRIED_TOKENS * context * pace.token)

    pretrain, long, mtp, sft = recipe.pretrain, recipe.long, recipe.mtp, recipe.sft
    stages = [
        ("tasks", 0, (tasks.train + tasks.dev + tasks.test) * (tasks.gate_runs + _GATE_GRADINGS) * pace.grading),
        ("corpus", 0, _corpus_documents(recipe) * pace.document),
        supervised("pretrain", pretrain.steps, pretrain.batch, pretrain.length),
        supervised("long", long.steps, long.batch, long.length),
        supervised("mtp", mtp.steps + mtp.joint_steps, mtp.batch, mtp.length),
        ("demonstrations", 0, _demonstration_gradings(recipe) * pace.grading),
        supervised("sft", sft.steps, sft.batch, sft.length),
    ]
    if recipe.continued.seconds:
        stages.append(("continued", 0, recipe.continued.seconds))
    else:
        rollouts = rl.steps * rl.prompts_per_step * rl.group
        tokens, seconds = tried(len(evaluated_steps(rl)) * tasks.dev * (rl.evaluate_samples + test.greedy))
        seconds += rollouts * (_ROLLOUT_GRADINGS * pace.grading + _ROLLOUT_TOKENS * context * pace.token)
        stages.append(("rl", rollouts * context + tokens, seconds))
    tries = sum(samples + test.greedy for samples in (test.samples, test.one_edit) if samples)
    return [*stages, ("evaluate", *tried(2 * tasks.test * tries))]


def _corpus_documents(recipe: Recipe) -> float:
    """What the corpus takes, in documents that are made."""
    generated = recipe.corpus.generated_documents if "generated" in recipe.corpus.sources else 0
    return generated * _CORPUS_DOCUMENTS + code_bytes(recipe.corpus) * _CODE_DOCUMENTS


def _demonstration_gradings(recipe: Recipe) -> float:
    """Tasks of the kinds that are shown come round again when each was."""
    count, kinds = recipe.sft.demonstrations, recipe.sft.kinds
    tasks = recipe.tasks.train * len(set(kinds or SEEN_KINDS)) / len(SEEN_KINDS)
    return min(count, tasks) * _SHOWN_GRADINGS + count * _EPISODE_GRADINGS
