"""Self-distillation of MTP heads: new heads learn the main head's full distribution while the trunk is frozen.

If the recipe sets `joint_steps`, steps follow that train trunk and heads together, on the next-token loss plus a
fraction of the heads' loss.
"""

from __future__ import annotations

import torch

from etude.corpus import mixture
from etude.pretrain.context import Rows, StageContext, next_token_loss
from etude.pretrain.draft import draft_loss, trunk_frozen
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
    model = context.model_of("long")
    if not model.mtp:
        raise PretrainError("stage mtp trains MTP heads: set model.num_nextn_predict_layers to 1 or more")
    masters = context.masters(model)
    total = stage.steps + stage.joint_steps
    optim = build_optimizer(model, stage.optimizer, total, masters=masters)
    streams = mixture(corpus.train, stdlib_share=share, length=stage.length, seed=recipe.seed + 2)
    measured = mixture(corpus.valid, stdlib_share=share, length=stage.length, seed=0)
    batches = held_out(measured, stage.length, stage.batch)
    loads: list[torch.Tensor] = []

    def compute_loss(step: int) -> StepLoss:
        rows = Rows.of(streams.batch(step, stage.batch), device)
        joint = step >= stage.steps
        if joint:
            main, output = next_token_loss(model, rows)
            divergence, load_ke = draft_loss(model, output, rows)
            loss, load_le = main + _JOINT_WEIGHT * divergence, output.load_le
        else:
            with torch.no_grad():
                output = model(rows.tokens, positions_bt=rows.positions, documents_bt=rows.documents, logits=False)
            with trunk_frozen(model):
                loss, load_ke = draft_loss(model, output, rows)
            load_le = torch.zeros_like(output.load_le)  # even load: the trunk's routers stay as they are
        loads[:] = [load_le, load_ke]
        return StepLoss(loss, rows.tokens.numel())

    def after_step(step: int) -> None:
        model.balance(loads[0], recipe.pretrain.balance_rate, loads[1])

    return StagePlan(
        recipe=stage,
        model=model,
        optim=optim,
        compute_loss=compute_loss,
        measure=lambda: draft_quality(model, batches, device),
        inputs={"corpus": context.corpus_digest(), "model": context.model_digest("long")},
        after_step=after_step,
    )
