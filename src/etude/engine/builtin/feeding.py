"""What one step feeds to the network: for every live row the tokens whose latents are missing, all rows in one pass.

A decoding row lacks its pending token, plus a draft behind it if there is one. A row that has just begun lacks the part
of its prompt that was not in the cache, which always includes the last token. The two kinds of rows are handled alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from etude.engine.builtin.rows import Ints, Rows
from etude.model import LatentCache
from etude.model.step import Step


@dataclass(frozen=True, slots=True)
class Feeding:
    rows: Rows
    step: Step
    owner_t: Ints
    """The cache row that each token of the step's flat list belongs to."""
    positions_t: Ints
    pending_b: Tensor
    """Index in the list of each live row's pending token; its draft is the next entry."""

    @classmethod
    def of(cls, rows: Rows, active: Ints, drafted_b: np.ndarray, cache: LatentCache) -> Feeding:
        """`drafted_b` is 1 for live rows with a draft, else 0."""
        starts = rows.filled[active]
        lengths = rows.position[active] + 1 + drafted_b - starts
        step = cache.step(torch.from_numpy(active), torch.from_numpy(starts), torch.from_numpy(lengths))
        # Padding at the end of a row may lie beyond the context.
        positions = np.minimum(step.positions_t.numpy(), rows.context - 1)
        pending = step.first_b + torch.from_numpy(lengths - 1 - drafted_b)
        return cls(rows, step, active[step.rows_t.numpy()], positions, pending)

    def tokens(self) -> Tensor:
        return torch.from_numpy(self.rows.tokens[self.owner_t, self.positions_t])

    def following(self) -> Tensor:
        """The token after each fed token: the draft head reads it together with the hidden state."""
        return torch.from_numpy(self.rows.tokens[self.owner_t, self.positions_t + 1])

    def write_experts(self, experts_tlk: Tensor) -> None:
        """Record the experts each fed token used. Entries of a refused draft are overwritten when its position is fed
        again."""
        if experts_tlk.shape[1]:
            real = self.step.real_t.numpy()
            experts = experts_tlk.numpy()[real].astype(np.uint16)
            self.rows.experts[self.owner_t[real], self.positions_t[real]] = experts
