"""The memory of a stage's trainer: what it takes, whether its layers are checkpointed, and what to change if it is too
much."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from etude.model import ModelConfig, Transformer, begin_adapters
from etude.model.activations import Pass, activations_of, must_checkpoint
from etude.model.checkpoints.slots import without_memory
from etude.recipe import Recipe
from etude.recipe.compute import ComputeRecipe
from etude.recipe.training import StageRecipe
from etude.training import TrainerMemory, free_memory
from etude.training.memory import Change, advice, in_gb, own_limit, return_freed
from etude.weights import CHUNK_BYTES

_HEAP = 2**25
"""Bytes of a tensor from which glibc allocates it outside of the heap, and gives its memory back when it is freed."""
BLOCKS = 'compute.checkpoint_activations="blocks"'


def stage_memory(recipe: Recipe, name: str, config: ModelConfig, dtype: torch.dtype) -> TrainerMemory:
    """Return the memory of a supervised stage's trainer, without the interpreter and its libraries. No network is
    built."""
    work = pass_of(recipe, name, config, dtype)
    states = _states(recipe, name, config, dtype, _passes(recipe, name).largest_pass[2])
    return with_pass(states, config, work, checkpoints(recipe.compute, config, work))


def states_of(recipe: Recipe, name: str, config: ModelConfig, dtype: torch.dtype, passes: int = 1) -> TrainerMemory:
    """Return what the trainer of any stage holds but for activations and versions; a step takes so many passes."""
    return TrainerMemory.of(
        trained_network(recipe, config),
        getattr(recipe, name).optimizer,
        dtype,
        trains=lambda parameter: trains(recipe, name, parameter),
        passes=passes,
        offload=recipe.compute.offload,
        device=recipe.compute.device,
    )


def with_pass(states: TrainerMemory, config: ModelConfig, work: Pass, checkpointed: bool) -> TrainerMemory:
    held = activations_of(config, work, checkpointed=checkpointed)
    reused = work.cuda or checkpointed or work.tokens * config.hidden_size * work.bytes > _HEAP
    return states.during(activations=held.layers + held.ends, logits=held.last, reused=reused)


def trained_network(recipe: Recipe, config: ModelConfig) -> Transformer:
    """Return the network that a run trains, with its adapters, but without memory."""
    return begin_adapters(without_memory(config), recipe.lora)


def trains(recipe: Recipe, stage: str, parameter: str) -> bool:
    """Whether a stage computes the gradient of a parameter, if that is not frozen in the whole run."""
    heads = parameter.startswith("mtp.")
    match stage:
        case "pretrain" | "long":
            return not heads
        case "mtp":
            return heads or recipe.mtp.joint_steps > 0
        case "rl":
            return not heads or recipe.rl.draft_loss > 0
        case _:
            return not heads or recipe.sft.draft_loss > 0


def pass_of(recipe: Recipe, name: str, config: ModelConfig, dtype: torch.dtype) -> Pass:
    """Return the largest forward and backward pass of a stage."""
    rows, length, _ = _passes(recipe, name).largest_pass
    work = plain_pass(recipe, rows, length, dtype)
    if not config.num_nextn_predict_layers:
        return work
    if name == "mtp":
        joint = recipe.mtp.joint_steps > 0
        return replace(work, drafts=True, trunk=joint, detached=not joint)
    return replace(work, drafts=name in ("sft", "continued") and recipe.sft.draft_loss > 0)


def plain_pass(recipe: Recipe, rows: int, length: int, dtype: torch.dtype) -> Pass:
    """Return a pass that trains no MTP heads."""
    adapters = frozenset(recipe.lora.targets) if recipe.lora.rank else None
    return Pass(rows, length, dtype, recipe.compute.device == "cuda", adapters=adapters, rank=recipe.lora.rank)


def checkpoints(compute: ComputeRecipe, config: ModelConfig, work: Pass) -> bool:
    """Whether the layers of a pass are checkpointed, which "auto" decides by the memory that is free now."""
    if compute.checkpoint_activations != "auto":
        return compute.checkpoint_activations == "blocks"
    return must_checkpoint(config, work, free_memory(compute.device))


def fit_passes(model: Transformer, compute: ComputeRecipe, work: Pass) -> None:
    """Checkpoint the layers of a network if its passes need that, and keep the heap small then."""
    checkpointed = checkpoints(compute, model.config, work)
    model.checkpoint_activations(checkpointed)
    if checkpointed and not work.cuda:
        return_freed()


def told(recipe: Recipe, name: str, config: ModelConfig, dtype: torch.dtype) -> str:
    """Return what a stage takes and which field to change, for the message that memory ran out."""
    recipe = as_begun(recipe, config, pass_of(recipe, name, config, dtype))
    memory = stage_memory(recipe, name, config, dtype)
    limit = min(own_limit(recipe.compute.device), memory.peak - 1)
    return f"it takes about {in_gb(memory.peak)} ({memory}); {advice(changes(recipe, name, config, dtype), limit)}"


def as_begun(recipe: Recipe, config: ModelConfig, work: Pass) -> Recipe:
    """Return the recipe with what "auto" chose when this process began, when all that it holds now was free."""
    compute = recipe.compute
    if compute.checkpoint_activations != "auto":
        return recipe
    chosen = "blocks" if must_checkpoint(config, work, own_limit(compute.device)) else "none"
    return recipe.model_copy(update={"compute": compute.model_copy(update={"checkpoint_activations": chosen})})


def changes(recipe: Recipe, name: str, config: ModelConfig, dtype: torch.dtype) -> Iterator[Change]:
    """Yield changes that save memory without another result: first checkpointing, then smaller passes with it."""
    work = pass_of(recipe, name, config, dtype)
    whole, parts = (_states(recipe, name, config, dtype, n) for n in (_passes(recipe, name).largest_pass[2], 2))
    field = f"{'sft' if name == 'continued' else name}.microbatch_tokens"
    yield from smaller_passes(whole, parts, config, work, field, checkpoints(recipe.compute, config, work))


def smaller_passes(
    whole: TrainerMemory, parts: TrainerMemory, config: ModelConfig, work: Pass, field: str, checkpointed: bool
) -> Iterator[Change]:
    """Yield checkpointing, if that is not done already, then smaller passes with it; `field` sets their tokens. `parts`
    is what a trainer holds whose steps take several passes."""
    fields = [] if checkpointed else [BLOCKS]
    if fields:
        yield Change(BLOCKS, with_pass(whole, config, work, True).peak)
    while work.rows > 1:
        work = replace(work, rows=work.rows // 2)
        yield Change(" ".join([*fields, f"{field}={work.tokens}"]), with_pass(parts, config, work, True).peak)


def _states(recipe: Recipe, name: str, config: ModelConfig, dtype: torch.dtype, passes: int) -> TrainerMemory:
    states = states_of(recipe, name, config, dtype, passes)
    if name != "continued":
        return states
    return states.beside(published=0, publishing=publishing_bytes(version_bytes(recipe, config, dtype)))


def version_bytes(recipe: Recipe, config: ModelConfig, dtype: torch.dtype) -> int:
    """Return the size of one version of what the run trains, in the compute dtype."""
    parameters = trained_network(recipe, config).parameters()
    return sum(parameter.numel() for parameter in parameters if parameter.requires_grad) * dtype.itemsize


def publishing_bytes(version: int) -> int:
    """Return what publishing a version takes: a copy of it, and the chunks that are encoded at a time."""
    return version + min(version, 8 * CHUNK_BYTES)


def _passes(recipe: Recipe, name: str) -> StageRecipe:
    found: StageRecipe = getattr(recipe, "sft" if name == "continued" else name)
    return found
