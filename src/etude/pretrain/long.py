"""Context extension: YaRN by the recipe's factor, then training on long rows.

Half of the rows come from documents longer than the base length, so that late positions occur at all; the other half
from the base mixture, so that nothing is unlearnt. The stage measures the loss on held-out documents at positions
beyond the base length. The loss before training is that of the base model without YaRN.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from etude.corpus import Mixture, RowStream, Shards, mixture
from etude.model import Transformer, like_with
from etude.pretrain.context import Rows, StageContext, next_token_losses
from etude.pretrain.errors import PretrainError
from etude.pretrain.measure import held_out, mean_loss
from etude.pretrain.stage import StagePlan
from etude.training import StepLoss, build_optimizer

_LONG_SHARE = 0.5


def plan(context: StageContext) -> StagePlan:
    recipe, stage, device = context.recipe, context.recipe.long, context.compute.device
    base_length = recipe.pretrain.length
    corpus = context.corpus()
    share = recipe.corpus.stdlib_share
    batches = held_out(_long(corpus.valid, base_length, stage.length, 0), stage.length, stage.batch)

    # A recipe that describes a network says how many positions it has in the end, a published model how many it has.
    trained = base_length if recipe.own_tokenizer else None
    model = _extended(context.model_before(), stage.factor, trained)
    masters = context.masters(model)
    optim = build_optimizer(model, stage.optimizer, stage.steps, masters=masters)
    late = _long(corpus.train, base_length, stage.length, recipe.seed)
    general = mixture(corpus.train, stdlib_share=share, length=stage.length, seed=recipe.seed + 1)
    both = Mixture.of(
        {late: _LONG_SHARE, **{stream: float(part) * (1 - _LONG_SHARE) for stream, part in general.streams}}
    )
    loads: list[Tensor] = []

    def measure(measured: Transformer) -> dict[str, float]:
        return {"late_loss": mean_loss(measured, batches, device, from_position=base_length)}

    def measure_before() -> dict[str, float]:
        base = context.model_before()
        context.masters(base)
        return measure(base)

    def compute_loss(step: int) -> Iterator[StepLoss]:
        batch = Rows.of(both.batch(step, stage.batch), device)
        return next_token_losses(model, batch, stage.microbatch_tokens, loads)

    def after_step(step: int) -> None:
        model.balance(torch.stack(loads).sum(0), recipe.pretrain.balance_rate)

    return StagePlan(
        recipe=stage,
        model=model,
        optim=optim,
        compute_loss=compute_loss,
        measure=lambda: measure(model),
        inputs={"corpus": context.corpus_digest(), "model": context.model_digest()},
        after_step=None if recipe.lora.rank else after_step,
        measure_before=measure_before,
    )


def _extended(base: Transformer, factor: int, trained: int | None) -> Transformer:
    """Return the model with rotary frequencies rescaled; a factor of 1 changes nothing."""
    return base if factor == 1 else like_with(base, base.config.extended(float(factor), trained))


def _long(shards: Shards, base_length: int, length: int, seed: int) -> RowStream:
    documents = shards.reaching(base_length)
    if not len(documents):
        raise PretrainError(
            f"the long stage needs documents of more than {base_length} tokens in both splits of the corpus: add "
            "folders, or raise corpus.held_out_share or corpus.max_file_bytes"
        )
    return RowStream("long", documents, shards.lengths, shards.document, length=length, seed=seed)
