"""The trainer's forward pass over one microbatch, replaying the engine's choice of experts unless replay is off."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from etude.model import Output, Replay, Transformer
from etude.rl.batch import RowBatch

ReplayMode = Literal["off", "on", "filter"]


def forward(model: Transformer, part: RowBatch, mode: ReplayMode, threshold: float) -> Output:
    replay = None
    if mode != "off" and part.experts_btlk is not None:
        replay = Replay(torch.from_numpy(part.experts_btlk.astype(np.int64)), mode, threshold)
    output: Output = model(torch.from_numpy(part.tokens_bt), replay=replay, logits=False)
    return output


def predicting_hidden(output: Output, part: RowBatch) -> Tensor:
    """Return the hidden states that predict the sampled tokens, in order: [n, H]."""
    predicted = torch.from_numpy(part.mask_bt)[:, 1:]
    return output.hidden_bth[:, :-1][predicted]
