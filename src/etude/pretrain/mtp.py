"""Self-distillation of MTP heads: new heads learn the main head's full distribution while the trunk is frozen.

If the recipe sets `joint_steps`, steps follow that train trunk and heads together, on the next-token loss plus a
fraction of the heads' loss.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from etude.corpus import mixture
from etude.pretrain.context import Rows, StageContext, next_token_loss
from etude.pretrain.draft import draft_loss, drafted, trunk_frozen
from etude.pretrain.errors import PretrainError
from etude.pretrain.measure import draft_quality, held_out
from etude.pretrain.stage import StagePlan
from etude.training import StepLoss, build_optimizer

_JOINT_WEIGHT = 0.3
"""Weight of the MTP heads' loss in joint steps; the published models were trained with 0.1 to 0.3."""


def plan(context: StageContext) -> StagePlan:
    recipe, stage, device = context.recipe, context.recipe.mtp, context.compute.device
    corpus = context.corpus()
    share = recipe.corpus.stdlib_share
    model = context.model_before()
    if not model.mtp:
        raise PretrainError("stage mtp trains MTP heads: set model.num_nextn_predict_layers to 1 or more")
    masters = context.masters(model)
    total = stage.steps + stage.joint_steps
    optim = build_optimizer(model, stage.optimizer, total, masters=masters)
    streams = mixture(corpus.train, stdlib_share=share, length=stage.length, seed=recipe.seed + 2)
    measured = mixture(corpus.valid, stdlib_share=share, length=stage.length, seed=0)
    batches = held_out(measured, stage.length, stage.batch)
    loads: list[tuple[torch.Tensor, torch.Tensor]] = []

    def compute_loss(step: int) -> Iterator[StepLoss]:
        batch = Rows.of(streams.batch(step, stage.batch), device)
        loads.clear()
        totals, weight = drafted(batch, len(model.mtp)), batch.weights.sum()
        for rows in batch.parts(stage.microbatch_tokens):
            if step >= stage.steps:
                main, output = next_token_loss(model, rows, total=weight)
                divergence, load_ke = draft_loss(model, output, rows, totals)
                loss, load_le = main + _JOINT_WEIGHT * divergence, output.load_le
            else:
                with torch.no_grad():
                    output = model(rows.tokens, positions_bt=rows.positions, documents_bt=rows.documents, logits=False)
                with trunk_frozen(model):
                    loss, load_ke = draft_loss(model, output, rows, totals)
                load_le = torch.zeros_like(output.load_le)  # even load: the trunk's routers stay as they are
            loads.append((load_le, load_ke))
            yield StepLoss(loss, rows.tokens.numel())

    def after_step(step: int) -> None:
        load_le, load_ke = (torch.stack(parts).sum(0) for parts in zip(*loads, strict=True))
        model.balance(load_le, recipe.pretrain.balance_rate, load_ke)

    return StagePlan(
        recipe=stage,
        model=model,
        optim=optim,
        compute_loss=compute_loss,
        measure=lambda: draft_quality(model, batches, device),
        inputs={"corpus": context.corpus_digest(), "model": context.model_digest()},
        after_step=after_step,
    )
