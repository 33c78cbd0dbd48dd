"""Context extension: rotary positions rescaled by the recipe's factor, then training on long rows, in one phase or
several of rising length.

Half of the rows come from documents longer than what the model (or the phase before) has seen, so that late positions
occur at all; the other half from the base mixture, so that nothing is unlearnt. The stage measures the loss on held-out
documents at positions beyond the base length, in rows of the last phase. The loss before training is that of the base
model without the extension.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from etude.corpus import Mixture, RowStream, Shards, mixture
from etude.model import ModelConfig
from etude.pretrain.context import Rows, StageContext, next_token_losses
from etude.pretrain.errors import PretrainError
from etude.pretrain.measure import held_out, mean_loss
from etude.pretrain.stage import StagePlan
from etude.recipe import Recipe
from etude.recipe.training import LongPhase
from etude.training import StepLoss, build_optimizer

_LONG_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class _Phase:
    recipe: LongPhase
    first: int
    """The stage's step with which the phase begins."""
    rows: Mixture
    config: ModelConfig
    """The network with the phase's positions."""


def plan(context: StageContext) -> StagePlan:
    recipe, stage, device = context.recipe, context.recipe.long, context.compute.device
    corpus = context.corpus()
    model = context.model_before()
    base = model.config
    phases = _phases(recipe, corpus.train, base)
    last = phases[-1]
    reach = _reach(trained_length(recipe, base), last.recipe.length)
    batches = held_out(_long(corpus.valid, reach, last.recipe.length, 0), last.recipe.length, last.recipe.batch)
    masters = context.masters(model)
    optim = build_optimizer(model, stage.optimizer, stage.all_steps, masters=masters)
    loads: list[Tensor] = []

    def measure(config: ModelConfig) -> dict[str, float]:
        model.take_positions(config)
        return {"late_loss": mean_loss(model, batches, device, from_position=reach)}

    def compute_loss(step: int) -> Iterator[StepLoss]:
        phase = next(phase for phase in reversed(phases) if phase.first <= step)
        if model.config is not phase.config:
            model.take_positions(phase.config)
        batch = Rows.of(phase.rows.batch(step - phase.first, phase.recipe.batch), device)
        return next_token_losses(model, batch, stage.microbatch_tokens, loads)

    def after_step(step: int) -> None:
        model.balance(torch.stack(loads).sum(0), recipe.pretrain.balance_rate)

    return StagePlan(
        recipe=stage,
        model=model,
        optim=optim,
        compute_loss=compute_loss,
        measure=lambda: measure(last.config),
        inputs={"corpus": context.corpus_digest(), "model": context.model_digest()},
        after_step=None if recipe.lora.rank else after_step,
        measure_before=lambda: measure(base),
    )


def trained_length(recipe: Recipe, base: ModelConfig) -> int:
    """Return the context that a network has before the stage, in tokens: for a new one, the rows of pretraining, since
    its positions count the longer context already."""
    return recipe.pretrain.length if recipe.own_tokenizer else base.max_position_embeddings


def reaches(recipe: Recipe, base: ModelConfig) -> list[int]:
    """Return for each phase the number of tokens that its long documents exceed: as many as the network, or the phase
    before, has seen, or half a row where it knows such lengths already."""
    lengths = [phase.length for phase in recipe.long.lengths]
    seen = [trained_length(recipe, base), *lengths[:-1]]
    return [_reach(before, length) for before, length in zip(seen, lengths, strict=True)]


def _phases(recipe: Recipe, train: Shards, base: ModelConfig) -> list[_Phase]:
    """Return the stage's phases, each with its rows; the seed of each differs."""
    asked, found = recipe.long.lengths, list[_Phase]()
    ends = accumulate(phase.steps for phase in asked)
    for number, (phase, end, reach) in enumerate(zip(asked, ends, reaches(recipe, base), strict=True)):
        seed = recipe.seed + 2 * number
        late = _long(train, reach, phase.length, seed)
        general = mixture(train, stdlib_share=recipe.corpus.stdlib_share, length=phase.length, seed=seed + 1)
        both = {late: _LONG_SHARE, **{stream: float(part) * (1 - _LONG_SHARE) for stream, part in general.streams}}
        found.append(_Phase(phase, end - phase.steps, Mixture.of(both), extended(recipe, base, phase)))
    return found


def extended(recipe: Recipe, base: ModelConfig, phase: LongPhase) -> ModelConfig:
    """Return the network as it is in a phase."""
    return base if phase.factor == 1 else base.extended(float(phase.factor), trained_length(recipe, base))


def _reach(seen: int, length: int) -> int:
    return seen if seen < length else length // 2


def _long(shards: Shards, reach: int, length: int, seed: int) -> RowStream:
    documents = shards.reaching(reach)
    if not len(documents):
        raise PretrainError(
            f"the long stage needs documents of more than {reach} tokens in both splits of the corpus: add "
            "folders, or raise corpus.held_out_share or corpus.max_file_bytes"
        )
    return RowStream("long", documents, shards.lengths, shards.document, length=length, seed=seed)
