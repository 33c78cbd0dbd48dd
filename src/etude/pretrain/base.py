"""Base pretraining: next-token prediction on packed rows, beginning with look-up documents.

The first steps read only short look-up documents (a listing, then questions about its lines). They teach a small model
to copy, which later learning builds on. Their rows have half the length and twice the number, so a step costs the same.
After every step the routers' biases are changed towards an even load of the experts, unless only adapters are trained.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from etude.corpus import LOOKUP, Mixture, RowStream, Shards, mixture
from etude.model import Transformer, config_from_recipe
from etude.pretrain.context import Rows, StageContext, next_token_losses
from etude.pretrain.errors import PretrainError
from etude.pretrain.measure import held_out, mean_loss
from etude.pretrain.stage import StagePlan
from etude.training import StepLoss, build_optimizer


def plan(context: StageContext) -> StagePlan:
    recipe, stage, device = context.recipe, context.recipe.pretrain, context.compute.device
    corpus = context.corpus()
    seed, share = recipe.seed, recipe.corpus.stdlib_share
    if context.before:
        model = context.model_before()
    else:
        model = Transformer(config_from_recipe(recipe.model, corpus.manifest["vocab_size"])).initialise(seed)
    masters = context.masters(model)
    optim = build_optimizer(model, stage.optimizer, stage.steps, masters=masters)
    lookup_steps = round(stage.lookup_share * stage.steps)
    lookups = _lookups(corpus.train, stage.length // 2, seed) if lookup_steps else None
    rest = mixture(corpus.train, stdlib_share=share, length=stage.length, seed=seed)
    measured = mixture(corpus.valid, stdlib_share=share, length=stage.length, seed=0)
    batches = held_out(measured, stage.length, stage.batch)
    loads: list[Tensor] = []

    def compute_loss(step: int) -> Iterator[StepLoss]:
        if lookups is not None and step < lookup_steps:
            batch = lookups.batch(step, stage.batch * 2)
        else:
            batch = rest.batch(step - lookup_steps, stage.batch)
        return next_token_losses(model, Rows.of(batch, device), stage.microbatch_tokens, loads)

    def after_step(step: int) -> None:
        model.balance(torch.stack(loads).sum(0), stage.balance_rate)

    return StagePlan(
        recipe=stage,
        model=model,
        optim=optim,
        compute_loss=compute_loss,
        measure=lambda: {"loss": mean_loss(model, batches, device)},
        inputs={"corpus": context.corpus_digest(), **({"model": context.model_digest()} if context.before else {})},
        after_step=None if recipe.lora.rank else after_step,
    )


def _lookups(shards: Shards, length: int, seed: int) -> Mixture:
    documents = shards.of_kind(LOOKUP)
    short = documents[shards.lengths[documents] <= length + 1]
    if not len(short):
        raise PretrainError(
            f"pretrain.lookup_share wants documents of kind {LOOKUP!r} with at most {length + 1} tokens, the corpus "
            "has none: generate them, or set pretrain.lookup_share = 0"
        )
    return Mixture.of({RowStream("lookups", short, shards.lengths, shards.document, length=length, seed=seed): 1.0})
