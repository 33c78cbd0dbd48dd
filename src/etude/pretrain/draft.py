"""The loss of the MTP heads: each head learns the main head's full distribution over the token that it drafts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from etude.model import Output, Transformer, head_divergence
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
    drafts = model.mtp_hidden(output, rows.tokens, positions_bt=rows.positions, documents_bt=rows.documents)
    losses = []
    for head, hidden in enumerate(drafts.hidden):
        weights = followed(rows, head + 1).flatten().float()
        main = output.hidden_bth[:, head + 1 :]
        total = None if totals is None else totals[head]
        loss, _ = head_divergence(hidden.flatten(0, 1), main.flatten(0, 1), model.head, weights, total=total)
        losses.append(loss)
    return torch.stack(losses).mean(), drafts.load_ke


def detached(output: Output) -> Output:
    return replace(output, hidden_bth=output.hidden_bth.detach())


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
