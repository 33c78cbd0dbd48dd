"""Measurements of a training step: trainer-engine mismatch, entropy, truncated ratios, expert replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from etude.model import Output, Transformer, head_logprobs
from etude.recipe.rl import RlRecipe
from etude.rl.batch import Row, RowBatch, TrainingGroup, microbatches, trace_rows
from etude.rl.forward import ReplayMode, SampledTokens, forward, predicting_hidden
from etude.rl.loss import LossParts


@dataclass(slots=True)
class StepMeter:
    loss: float = 0.0
    deltas: list[Tensor] = field(default_factory=list)
    entropies: list[Tensor] = field(default_factory=list)
    capped: int = 0
    clipped: int = 0
    overridden: int = 0
    """Number of tokens for which the replay used, in some layer, an expert that the trainer itself would not choose."""
    refused: int = 0
    updates: list[dict[str, float]] = field(default_factory=list)
    draft_loss: float = 0.0
    draft_accepted: float = 0.0
    """Sums over minibatches of the MTP heads' loss, and of the probability that a draft is accepted."""

    def add(self, parts: LossParts, output: Output) -> None:
        self.loss += float(parts.loss.detach())
        self.deltas.append(parts.delta)
        self.entropies.append(parts.entropy)
        self.capped += int(parts.capped.sum())
        self.clipped += int(parts.clipped.sum())
        self.overridden += _marked(output.overridden_bt)
        self.refused += _marked(output.refused_bt)

    def drafts(self, loss: Tensor, accepted: Tensor) -> None:
        self.draft_loss += float(loss.detach())
        self.draft_accepted += float(accepted)

    def optimizer(self, update: dict[str, float]) -> None:
        self.updates.append(update)

    def summary(self) -> dict[str, Any]:
        if not self.deltas:
            return {"loss": 0.0, "overridden": 0, "refused": 0}
        delta = torch.cat(self.deltas)
        return {
            "loss": self.loss,
            "entropy": float(torch.cat(self.entropies).mean()),
            "mismatch_mean": float(delta.abs().mean()),
            "mismatch_p99": p99(delta.abs()),
            "mismatch_k3": k3(delta),
            "capped_share": self.capped / len(delta),
            "clipped_share": self.clipped / len(delta),
            "overridden": self.overridden,
            "refused": self.refused,
            "grad_norm": max(update["grad_norm"] for update in self.updates),
            "lr": self.updates[-1]["lr"],
            **self._drafts(),
        }

    def _drafts(self) -> dict[str, float]:
        """Return the means over minibatches; nothing where no head was trained."""
        if not self.draft_accepted:
            return {}
        count = len(self.updates)
        return {"draft_loss": self.draft_loss / count, "draft_accepted": self.draft_accepted / count}


def p99(values: Tensor) -> float:
    """Return the 99th percentile. It is numpy's, because torch's takes at most 2^24 values."""
    return float(np.quantile(values.numpy(force=True), 0.99))


def k3(delta: Tensor) -> float:
    """Estimate KL(engine || trainer) as the mean of (r - 1 - log r). `delta` holds log r, the trainer's minus the
    engine's log-probs.

    The estimator is never negative, and unbiased for tokens that the engine sampled. It is computed in fp64, because
    fp32 would lose small differences."""
    delta = delta.double()
    return float((delta.expm1() - delta).mean())


def _marked(marks_bt: Tensor | None) -> int:
    return 0 if marks_bt is None else int(marks_bt.sum())


def most_sampled_version(rows: Sequence[Row]) -> int | None:
    """Return the weight version that sampled most tokens of these rows; None if there are no rows."""
    sampled = [row.versions[row.sampled] for row in rows]
    return int(np.bincount(np.concatenate(sampled)).argmax()) if sampled else None


def probe_replay(model: Transformer, rows: Sequence[Row], version: int, recipe: RlRecipe) -> dict[str, float]:
    """Return the p99 of |trainer - engine log-prob| on the same rows: without replay of the engine's experts, with it,
    and with filtered replay, which refuses experts that score low in the trainer.

    `model` holds the weights of `version`, and only tokens sampled by that version count. So trainer and engine are
    compared on the same weights and tokens. What mismatch remains comes from their different numerics, and from tokens
    that are routed to other experts because of that difference."""
    measured: dict[str, float] = {}
    parts = microbatches(rows, recipe.microbatch_tokens)
    modes: tuple[ReplayMode, ...] = ("off", "on", "filter")
    for mode in modes:
        deltas = [_deltas(model, part, mode, recipe) for part in parts]
        if not deltas:
            return {}
        same = torch.cat([delta[versions == version] for delta, versions in deltas])
        measured[f"p99_{mode}"] = p99(same.abs())
        measured["probe_tokens"] = len(same)
    return measured


def reference_kl(reference: Transformer, groups: Sequence[TrainingGroup], recipe: RlRecipe) -> dict[str, float]:
    """Return, per trace id, the sum over sampled tokens of log pi (the engine's, at sampling) - log pi_ref."""
    totals: dict[str, float] = {}
    for group in groups:
        for member in group.members:
            if member is None:
                continue
            parts = microbatches(trace_rows(member.trace, 0.0), recipe.microbatch_tokens)
            # delta is reference - engine, so k1 is -delta.
            totals[member.trace.id] = -sum(float(_deltas(reference, part, "off", recipe)[0].sum()) for part in parts)
    return totals


def _deltas(model: Transformer, part: RowBatch, mode: ReplayMode, recipe: RlRecipe) -> tuple[Tensor, Tensor]:
    """Return the network's minus the engine's log-prob of each sampled token, and the token's version, on the CPU."""
    output, sampled = forward(model, part, mode, recipe.replay.threshold), SampledTokens.of(part, model.device)
    logp = head_logprobs(predicting_hidden(output, sampled), model.head, sampled.tokens_n, recipe.temperature)
    return (logp - sampled.engine_n).cpu(), torch.from_numpy(part.versions_bt[:, 1:][part.mask_bt[:, 1:]])
