"""The trainer's forward pass over one microbatch, replaying the engine's choice of experts unless replay is off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor

from etude.model import Output, Replay, Transformer
from etude.rl.batch import RowBatch

ReplayMode = Literal["off", "on", "filter"]


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """The sampled tokens of a microbatch, row after row, on the network's device."""

    predicted_n: Tensor
    """Where each token is predicted: an index of the positions of all rows, [B * T]."""
    tokens_n: Tensor
    engine_n: Tensor
    """The engine's log-prob of each token."""
    advantages_n: Tensor

    @classmethod
    def of(cls, part: RowBatch, device: torch.device) -> Self:
        # Chosen on the CPU: choosing by a mask on a GPU makes the CPU wait.
        rows, before = part.mask_bt[:, 1:].nonzero()
        tokens, engine = (column[rows, before + 1] for column in (part.tokens_bt, part.logprobs_bt))
        arrays = rows * part.tokens_bt.shape[1] + before, tokens, engine, part.advantages_b[rows]
        return cls(*(torch.from_numpy(array).to(device) for array in arrays))


def forward(model: Transformer, part: RowBatch, mode: ReplayMode, threshold: float) -> Output:
    replay = None
    if mode != "off" and part.experts_btlk is not None:
        replay = Replay(torch.from_numpy(part.experts_btlk.astype(np.int64)).to(model.device), mode, threshold)
    output: Output = model(torch.from_numpy(part.tokens_bt).to(model.device), replay=replay, logits=False)
    return output


def predicting_hidden(output: Output, sampled: SampledTokens) -> Tensor:
    """Return the hidden states that predict the sampled tokens, in order: [n, H]."""
    return output.hidden_bth.flatten(0, 1).index_select(0, sampled.predicted_n)
