"""The loss of the MTP heads: each head learns the main head's full distribution over the token that it drafts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from etude.model import MtpHidden, Output, Transformer, head_divergence
from etude.pretrain.context import Rows
from etude.pretrain.measure import followed


def drafted(rows: Rows, heads: int) -> list[Tensor]:
    """Return the number of drafts in a batch for each MTP head."""
    return [followed(rows, head + 1).sum().float() for head in range(heads)]


def draft_loss(
    model: Transformer, output: Output, rows: Rows, totals: Sequence[Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Return the mean over heads of KL(main head || MTP head), and the load of the heads' experts. `totals` are the
    numbers of drafts in the batch, if `rows` are a part of one.

    The main head's distribution gets no gradient, but the trunk does, through the hidden states, embedding and output
    head that the MTP heads use. To prevent that, call this inside `trunk_frozen` and on a detached output.
    """
    heads = model.mtp_hidden(output, rows.tokens, positions_bt=rows.positions, documents_bt=rows.documents)
    weights = [followed(rows, head + 1) for head in range(len(heads.hidden))]
    loss, _ = heads_divergence(model, heads, output, weights, totals)
    return loss, heads.load_ke


def heads_divergence(
    model: Transformer, heads: MtpHidden, output: Output, weights: Sequence[Tensor], totals: Sequence[Tensor] | None
) -> tuple[Tensor, Tensor]:
    """Return the mean over heads of KL(main head || MTP head), and the probability that a draft of the first head is
    accepted. `weights` has a weight for each row of each head's hidden states; `totals` are their sums over the batch,
    if these rows are a part of one."""
    found = [
        head_divergence(
            hidden.flatten(0, 1),
            output.hidden_bth[:, head + 1 :].flatten(0, 1),
            model.head,
            weights[head].flatten().float(),
            total=None if totals is None else totals[head],
        )
        for head, hidden in enumerate(heads.hidden)
    ]
    return torch.stack([loss for loss, _ in found]).mean(), found[0][1]


def detached(output: Output) -> Output:
    return replace(output, hidden_bth=output.hidden_bth.detach())


def heads_learn(model: Transformer) -> bool:
    """Whether the network has MTP heads with anything to train: where only adapters are, a head may have none."""
    return any(parameter.requires_grad for parameter in model.mtp.parameters())


@contextmanager
def trunk_frozen(model: Transformer) -> Iterator[None]:
    """Context in which no gradient is recorded for the trunk (all parameters but those of the MTP heads)."""
    trunk = [p for name, p in model.named_parameters() if not name.startswith("mtp.") and p.requires_grad]
    for parameter in trunk:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trunk:
            parameter.requires_grad_(True)
