"""Measurements that show whether a stage helped, on the same held-out rows before and after it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from etude.corpus import Batch, Mixture, RowStream
from etude.model import Transformer, head_agreement, head_divergence, head_logprobs
from etude.pretrain.context import Rows, next_token_loss
from etude.pretrain.errors import PretrainError

HELD_OUT_TOKENS = 16_384


def held_out(rows: Mixture | RowStream, length: int, batch: int) -> list[Batch]:
    """Return the first rows of a held-out stream: about HELD_OUT_TOKENS tokens, at least one batch."""
    count = max(batch, HELD_OUT_TOKENS // length // batch * batch)
    if isinstance(rows, RowStream):
        count = min(count, rows.epoch_rows())
    every = [rows.row(number) for number in range(count)]
    return [Batch.of(every[start : start + batch]) for start in range(0, count, batch)]


@torch.no_grad()
def mean_loss(model: Transformer, batches: Sequence[Batch], device: str, *, from_position: int = 0) -> float:
    """Return the weighted mean next-token loss over the targets at positions from `from_position` on."""
    total, weight = 0.0, 0.0
    for batch in batches:
        rows = Rows.of(batch, device)
        weights = rows.weights * (rows.positions >= from_position)
        counted = float(weights.sum())
        if counted:
            loss, _ = next_token_loss(model, rows, weights)
            total += float(loss) * counted
            weight += counted
    if not weight:
        raise PretrainError("no held-out tokens to measure on: add documents or raise corpus.held_out_share")
    return total / weight


@torch.no_grad()
def draft_quality(model: Transformer, batches: Sequence[Batch], device: str) -> dict[str, float]:
    """Measure the first MTP head: "accepted_per_draft" is the probability that a token drafted at temperature 1 is
    accepted, "top1" is how often its argmax is also that of the main head."""
    accepted, same, counted = 0.0, 0.0, 0.0
    for batch in batches:
        rows = Rows.of(batch, device)
        output = model(rows.tokens, positions_bt=rows.positions, documents_bt=rows.documents, logits=False)
        drafts = model.mtp_hidden(output, rows.tokens, positions_bt=rows.positions, documents_bt=rows.documents)
        weights = followed(rows, 1).flatten().float()
        pair = drafts.hidden[0].flatten(0, 1), output.hidden_bth[:, 1:].flatten(0, 1)
        _, share = head_divergence(*pair, model.head, weights)
        accepted += float(share * weights.sum())
        same += float(head_agreement(*pair, model.head, weights))
        counted += float(weights.sum())
    return {"accepted_per_draft": accepted / max(counted, 1.0), "top1": same / max(counted, 1.0)}


def followed(rows: Rows, ahead: int) -> torch.Tensor:
    """Return for each position whether the token `ahead` positions later is in the same document: [B, T - ahead]."""
    here, there = rows.documents[:, :-ahead], rows.documents[:, ahead:]
    return (here == there) & (here >= 0)


@torch.inference_mode()
def window_nats(model: Transformer, tokens_t: Sequence[int], first: int) -> float:
    """Return the negative log-likelihood of the tokens from `first` on, given those before, in nats."""
    tokens = torch.tensor(tokens_t, device=model.embed_tokens.weight.device)
    hidden = model(tokens[None], logits=False).hidden_bth[0, first - 1 : -1]
    return -float(head_logprobs(hidden, model.head, tokens[first:], 1.0).double().sum())
