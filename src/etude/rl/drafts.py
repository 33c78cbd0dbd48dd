"""The loss that keeps the MTP heads close to the trunk while RL changes it.

The heads learn the main head's distribution over the sampled tokens, since the engine drafts no others. Their input is
detached and the trunk frozen, so the policy learns what it would learn without them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from etude.model import Output, Transformer
from etude.pretrain.draft import detached, heads_divergence, trunk_frozen
from etude.rl.batch import Row, RowBatch

_FIRST = 2
"""Index of the first token that the first head drafts: it reads the token before, and the hidden state before that."""


def drafted_tokens(rows: Sequence[Row], heads: int) -> list[Tensor]:
    """Return the number of sampled tokens that each MTP head drafts in these rows."""
    return [torch.tensor(float(sum(row.sampled[_FIRST + head :].sum() for row in rows))) for head in range(heads)]


def draft_loss(model: Transformer, output: Output, part: RowBatch, totals: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return a microbatch's share of the heads' loss, whose gradient reaches the heads alone, and of the probability
    that a draft of the first head is accepted. `totals` are the `drafted_tokens` of the whole minibatch."""
    tokens_bt, mask_bt = (torch.from_numpy(array).to(model.device) for array in (part.tokens_bt, part.mask_bt))
    weights = [F.pad(mask_bt[:, _FIRST + head :], (0, 1)) for head in range(len(totals))]  # the last row drafts nothing
    with trunk_frozen(model):
        heads = model.mtp_hidden(detached(output), tokens_bt)
        return heads_divergence(model, heads, detached(output), weights, totals)
