"""The loss of the MTP heads: each head learns the main head's full distribution over the token that it drafts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from etude.model import Output, Transformer
from etude.pretrain.context import Rows
from etude.pretrain.measure import followed
from etude.training import kl_to_teacher


def draft_loss(model: Transformer, output: Output, rows: Rows) -> tuple[Tensor, Tensor]:
    """Return the mean over heads of KL(main head || MTP head), and the load of the heads' experts.

    The main head's distribution gets no gradient, but the trunk does, through the hidden states, embedding and output
    head that the MTP heads use. To prevent that, call this inside `trunk_frozen` and on a detached output.
    """
    drafts = model.mtp_logits(output, rows.tokens, positions_bt=rows.positions, documents_bt=rows.documents)
    losses = []
    for head, logits in enumerate(drafts.logits):
        weights = followed(rows, head + 1).flatten().float()
        main = output.logits_btv[:, head + 1 :].detach()
        losses.append(kl_to_teacher(logits.flatten(0, 1), main.flatten(0, 1), weights))
    return torch.stack(losses).mean(), drafts.load_ke


def detached(output: Output) -> Output:
    return Output(output.logits_btv.detach(), output.hidden_bth.detach(), output.experts_btlk, output.load_le)


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
