"""Estimates what a recipe will take before it runs: parameters, memory, and tokens and seconds per stage.

A stage's seconds are its amount of work, in units of tokens, gradings or documents, times the seconds that `probe`
measures for one unit on this machine. The constants below convert a stage into such units. They were measured by hand
with the tiny recipe on two cores. All are ratios, so they do not depend on the machine's speed.
"""

from __future__ import annotations

from dataclasses import dataclass

from etude.corpus import code_bytes
from etude.lineage.base import network_of
from etude.lineage.memory import Need, memory_of
from etude.lineage.probe import Pace, probe
from etude.lineage.stages import stages_of
from etude.model import adapter_size, parameters_of
from etude.model.checkpoints.slots import without_memory
from etude.recipe import Recipe
from etude.rl import evaluated_steps
from etude.tasks.sources.microrepo.bugs import SEEN_KINDS
from etude.training import free_memory
from etude.training.compute import Compute, planned_compute

_STAGE_TOKENS = {"pretrain": 1.65, "long": 2.6, "mtp": 1.35, "sft": 3.0}
"""Cost of training on one token in each stage, relative to the forward and backward pass that `probe` times. What
exceeds 1 is spent on the optimizer, on draft heads, and on longer rows."""
_ROLLOUT_TOKENS = 0.7
"""Cost of sampling and training on one RL rollout, relative to a forward and backward pass over a full context."""
_TRIED_TOKENS = 0.5
"""Cost of sampling one rollout of an evaluation, relative to a forward and backward pass over a full context."""
_ROLLOUT_GRADINGS, _TRIED_GRADINGS = 0.7, 1.0
"""Average number of gradings per rollout: in RL, where rollouts that made equal changes share a grading; and in an
evaluation, where each has its own."""
_GATE_GRADINGS = 3.3
"""Cost of the gate per task, in gradings, besides the tasks.gate_runs gradings of the reference solution. It covers the
grading of an empty change, the search for leaks, and the slowdown from keeping all cores busy."""
_SHOWN_GRADINGS, _EPISODE_GRADINGS = 2.2, 0.2
"""Cost of demonstrations in gradings: of each task that gets any, and besides, of each single demonstration. The
demonstrations of one task share the results of commands."""
_CORPUS_DOCUMENTS = 1.7
"""Cost of one generated document in the corpus stage, in units of generating it: it is also compared and tokenised."""
_CODE_DOCUMENTS = 1.8e-3
"""Cost of one byte of a code file in the corpus stage, relative to generating one document."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    compute: Compute
    pace: Pace
    parameters: int
    trained: int
    """Number of parameters that the run trains: all, or those of adapters."""
    active: int
    """Number of parameters that one token uses."""
    memory: list[Need]
    """What each training stage takes."""
    free: int
    """Bytes of memory that are free on this machine or device."""
    stages: list[tuple[str, int, float]]
    """Name, tokens and seconds of each stage."""


def plan_run(recipe: Recipe) -> RunPlan:
    compute = planned_compute(recipe.compute)
    pace = probe(recipe, compute)
    config = network_of(recipe)
    count = parameters_of(config)
    trained = adapter_size(without_memory(config), recipe.lora) if recipe.lora.rank else count.total
    free = free_memory(compute.device)
    memory = memory_of(recipe, config, compute.dtype, free)
    return RunPlan(compute, pace, count.total, trained, count.active, memory, free, plan_stages(recipe, pace))


def plan_stages(recipe: Recipe, pace: Pace) -> list[tuple[str, int, float]]:
    """Return name, tokens and seconds of every stage of the recipe, in order."""
    tasks, context, rl, test = recipe.tasks, recipe.engine.context, recipe.rl, recipe.evaluation

    def supervised(name: str, tokens: int) -> tuple[str, int, float]:
        return name, tokens, tokens * _STAGE_TOKENS[name] * pace.token

    def tried(rollouts: int) -> tuple[int, float]:
        return rollouts * context, rollouts * (_TRIED_GRADINGS * pace.grading + _TRIED_TOKENS * context * pace.token)

    def reinforced() -> tuple[str, int, float]:
        rollouts = rl.steps * rl.prompts_per_step * rl.group
        tokens, seconds = tried(len(evaluated_steps(rl)) * tasks.dev * (rl.evaluate_samples + test.greedy))
        seconds += rollouts * (_ROLLOUT_GRADINGS * pace.grading + _ROLLOUT_TOKENS * context * pace.token)
        return "rl", rollouts * context + tokens, seconds

    pretrain, long, mtp, sft = recipe.pretrain, recipe.long, recipe.mtp, recipe.sft
    tries = sum(samples + test.greedy for samples in (test.samples, test.one_edit) if samples)
    every = [
        ("tasks", 0, (tasks.train + tasks.dev + tasks.test) * (tasks.gate_runs + _GATE_GRADINGS) * pace.grading),
        ("corpus", 0, _corpus_documents(recipe) * pace.document),
        supervised("pretrain", pretrain.steps * pretrain.batch * pretrain.length),
        supervised("long", sum(phase.steps * phase.batch * phase.length for phase in long.lengths)),
        supervised("mtp", (mtp.steps + mtp.joint_steps) * mtp.batch * mtp.length),
        ("demonstrations", 0, _demonstration_gradings(recipe) * pace.grading),
        supervised("sft", sft.steps * sft.batch * sft.length),
        reinforced(),
        ("continued", 0, recipe.continued.seconds),
        ("evaluate", *tried(len(recipe.evaluated) * tasks.test * tries)),
    ]
    listed = {stage.name for stage in stages_of(recipe)}
    return [stage for stage in every if stage[0] in listed]


def _corpus_documents(recipe: Recipe) -> float:
    generated = recipe.corpus.generated_documents if "generated" in recipe.corpus.sources else 0
    return generated * _CORPUS_DOCUMENTS + code_bytes(recipe.corpus) * _CODE_DOCUMENTS


def _demonstration_gradings(recipe: Recipe) -> float:
    """Return the cost of the demonstrations stage in gradings. Every task of the recipe's kinds gets one demonstration
    before any task gets a second."""
    count, kinds = recipe.sft.demonstrations, recipe.sft.kinds
    tasks = recipe.tasks.train * len(set(kinds or SEEN_KINDS)) / len(SEEN_KINDS)
    return min(count, tasks) * _SHOWN_GRADINGS + count * _EPISODE_GRADINGS
