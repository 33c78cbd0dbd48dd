"""Estimates what a recipe will take before it runs: parameters, memory, and tokens and seconds per stage.

A stage's seconds are its amount of work, in units of tokens, gradings or documents, times the seconds that `probe`
measures for one unit on this machine. Training counts by its arithmetic, which follows from the network and the length
of rows. The constants below convert the rest into such units. They were measured by hand with the tiny recipe on two
cores. All are ratios, so they do not depend on the machine's speed.
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
from etude.model.size import operations_of_drafts, operations_per_token
from etude.recipe import Recipe
from etude.rl import evaluated_steps
from etude.tasks.sources.microrepo.bugs import SEEN_KINDS
from etude.training import free_memory
from etude.training.compute import Compute, planned_compute

_STEP_TOKENS = 1.7
"""Cost of a supervised step, relative to the arithmetic of its network: the optimizer, the batch, the measurements
before and after, and what one thread does while others wait. Stage by stage it was 1.5 to 1.9."""
_FROZEN_SHARE = 2 / 3
"""Arithmetic of a forward and backward pass in which only adapters have gradients, relative to that of all weights."""
_ROLLOUT_SHARE = 0.4
"""Number of tokens of a rollout, relative to the context: 206 of 512 on average, 59 of them sampled, in RL and in
evaluations of the tiny recipe."""
_ROLLOUT_TOKENS = 1.75
"""Cost of sampling and training on one token of an RL rollout, relative to a forward and backward pass."""
_TRIED_TOKENS = 1.25
"""Cost of sampling one token of an evaluation's rollout, its prompts included, relative to a forward and backward
pass."""
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
    tasks, rl, test, network = recipe.tasks, recipe.rl, recipe.evaluation, network_of(recipe)
    rollout = round(_ROLLOUT_SHARE * recipe.engine.context)
    unit = operations_per_token(network, recipe.pretrain.length) / _STEP_TOKENS

    def trunk(length: int) -> float:
        return operations_per_token(network, length) * (_FROZEN_SHARE if recipe.lora.rank else 1)

    def drafts(length: int) -> float:
        return operations_of_drafts(network, length)

    def supervised(name: str, *parts: tuple[int, float]) -> tuple[str, int, float]:
        """`parts` are numbers of tokens, each with the arithmetic per token."""
        tokens, work = sum(tokens for tokens, _ in parts), sum(tokens * each for tokens, each in parts)
        return name, tokens, work / unit * pace.token

    def tried(rollouts: int) -> tuple[int, float]:
        tokens = rollouts * rollout
        return tokens, rollouts * _TRIED_GRADINGS * pace.grading + tokens * _TRIED_TOKENS * pace.token

    def reinforced() -> tuple[str, int, float]:
        rollouts = rl.steps * rl.prompts_per_step * rl.group
        tokens, seconds = tried(len(evaluated_steps(rl)) * tasks.dev * (rl.evaluate_samples + test.greedy))
        seconds += rollouts * (_ROLLOUT_GRADINGS * pace.grading + _ROLLOUT_TOKENS * rollout * pace.token)
        return "rl", rollouts * rollout + tokens, seconds

    pretrain, long, mtp, sft = recipe.pretrain, recipe.long, recipe.mtp, recipe.sft
    tries = sum(samples + test.greedy for samples in (test.samples, test.one_edit) if samples)
    every = [
        ("tasks", 0, (tasks.train + tasks.dev + tasks.test) * (tasks.gate_runs + _GATE_GRADINGS) * pace.grading),
        ("corpus", 0, _corpus_documents(recipe) * pace.document),
        supervised("pretrain", (pretrain.steps * pretrain.batch * pretrain.length, trunk(pretrain.length))),
        supervised("long", *((p.steps * p.batch * p.length, trunk(p.length)) for p in long.lengths)),
        supervised(
            "mtp",
            (mtp.steps * mtp.batch * mtp.length, trunk(mtp.length) / 3 + drafts(mtp.length)),
            (mtp.joint_steps * mtp.batch * mtp.length, trunk(mtp.length) + drafts(mtp.length)),
        ),
        ("demonstrations", 0, _demonstration_gradings(recipe) * pace.grading),
        supervised(
            "sft",
            (sft.steps * sft.batch * sft.length, trunk(sft.length) + (drafts(sft.length) if sft.draft_loss else 0)),
        ),
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
