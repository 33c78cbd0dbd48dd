"""SFT on demonstrations: the loss covers the tokens of the scripted expert's turns; tool output is masked or weighted
low.

Every step also distils the MTP heads on its packed rows, so that drafts stay good while the trunk changes. The
distillation loss gives gradients to the heads only, and does not change a bit of the trunk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from etude.corpus import Mixture, TraceRows, hold_out
from etude.model import Transformer
from etude.pretrain.context import Rows, StageContext, next_token_loss
from etude.pretrain.draft import detached, draft_loss, drafted, heads_learn, trunk_frozen
from etude.pretrain.errors import PretrainError
from etude.pretrain.measure import draft_quality, held_out, mean_loss
from etude.pretrain.stage import StagePlan
from etude.recipe.training import SftRecipe
from etude.trace.file import read_traces
from etude.trace.trace import Trace
from etude.training import StepLoss, build_optimizer

_HELD_OUT_SHARE = 0.05


def plan(context: StageContext) -> StagePlan:
    recipe, stage, device = context.recipe, context.recipe.sft, context.compute.device
    traces = demonstrations(context.run, stage)
    train, held = learnt_and_held_out(traces)
    model = context.model_before()
    masters = context.masters(model)
    optim = build_optimizer(model, stage.optimizer, stage.steps, masters=masters)
    stream = TraceRows(train, other_token_loss=stage.other_token_loss).stream(
        "demonstrations", length=stage.length, seed=recipe.seed
    )
    streams = Mixture.of({stream: 1.0})
    held_stream = TraceRows(held, other_token_loss=0.0).stream("held out", length=stage.length, seed=0)
    batches = held_out(held_stream, stage.length, stage.batch)

    def compute_loss(step: int) -> Iterator[StepLoss]:
        parts = demonstration_losses(model, Rows.of(streams.batch(step, stage.batch), device), stage)
        if stage.measure_every and (step + 1) % (stage.measure_every * stage.log_every) == 0:
            first = next(parts)
            first.metrics["held_out_loss"] = mean_loss(model, batches, device)
            yield first
        yield from parts

    def measure() -> dict[str, float]:
        numbers = {"loss": mean_loss(model, batches, device)}
        return numbers | (draft_quality(model, batches, device) if model.mtp else {})

    return StagePlan(
        recipe=stage,
        model=model,
        optim=optim,
        compute_loss=compute_loss,
        measure=measure,
        inputs={"demonstrations": _digest(traces), "model": context.model_digest()},
    )


def demonstration_losses(model: Transformer, batch: Rows, stage: SftRecipe) -> Iterator[StepLoss]:
    """Compute a step's loss in parts of at most `microbatch_tokens`. Its value is the weighted mean next-token loss
    alone; its gradient also includes that of the MTP heads' loss."""
    totals, weight = drafted(batch, len(model.mtp)), batch.weights.sum()
    for rows in batch.parts(stage.microbatch_tokens):
        loss, output = next_token_loss(model, rows, total=weight)
        metrics = {}
        if stage.draft_loss > 0 and heads_learn(model):
            with trunk_frozen(model):
                divergence, _ = draft_loss(model, detached(output), rows, totals)
            metrics["draft_loss"] = float(divergence.detach())
            loss = loss + stage.draft_loss * (divergence - divergence.detach())  # gradient only, no value
        yield StepLoss(loss, rows.tokens.numel(), metrics)


def demonstrations(run: Path, stage: SftRecipe) -> list[Trace]:
    """Return the run's demonstrations in the order of trace ids, at most as many as the recipe asks for."""
    folder = run / "demonstrations"
    files = sorted(folder.glob("*.parquet"))
    if not files:
        raise PretrainError(f"no demonstrations (*.parquet) in {folder}: make them first")
    traces = sorted((trace for path in files for trace in read_traces(path)), key=lambda trace: trace.id)
    return traces[: stage.demonstrations]


def learnt_and_held_out(traces: list[Trace]) -> tuple[list[Trace], list[Trace]]:
    train, held = hold_out(traces, _HELD_OUT_SHARE)
    if not held:
        raise PretrainError("the demonstrations cover one task only; two are needed to hold one out")
    return train, held


def _digest(traces: list[Trace]) -> str:
    """Return a digest of the traces' ids, tokens and masks, not of their files: parquet may store equal traces as
    different bytes."""
    whole = hashlib.sha256()
    for trace in traces:
        whole.update(trace.id.encode())
        for segment in trace.segments:
            whole.update(segment.tokens.tobytes())
            whole.update(segment.sampled.tobytes())
    return whole.hexdigest()
