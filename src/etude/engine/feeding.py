"""What one step feeds to the network: every live row what its latents lack, all of it in one pass.

A row that decodes lacks its pending token, with a draft behind it if there is one; a row that has just begun lacks what
of its prompt was not in the cache, the last token always among it. Nothing else tells the two apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from etude.engine.rows import Ints, Rows
from etude.model import LatentCache
from etude.model.step import Step


@dataclass(frozen=True, slots=True)
class Feeding:
    rows: Rows
    step: Step
    owner_t: Ints
    """The row of the cache that each token of the step's list belongs to."""
    positions_t: Ints
    pending_b: Tensor
    """Where in the list each live row's pending token is; its draft is the token after."""

    @classmethod
    def of(cls, rows: Rows, active: Ints, drafted_b: np.ndarray, cache: LatentCache) -> Feeding:
        """`drafted_b`: 1 for live rows with a draft, else 0."""
        starts = rows.filled[active]
        lengths = rows.position[active] + 1 + drafted_b - starts
        step = cache.step(torch.from_numpy(active), torch.from_numpy(starts), torch.from_numpy(lengths))
        # Padding of the last pieces may lie behind the context.
        positions = np.minimum(step.positions_t.numpy(), rows.context - 1)
        pending = step.first_b + torch.from_numpy(lengths - 1 - drafted_b)
        return cls(rows, step, active[step.rows_t.numpy()], positions, pending)

    def tokens(self) -> Tensor:
        return torch.from_numpy(self.rows.tokens[self.owner_t, self.positions_t])

    def following(self) -> Tensor:
        """The token after each: what the draft head reads beside the hidden state."""
        return torch.from_numpy(self.rows.tokens[self.owner_t, self.positions_t + 1])

    def write_experts(self, experts_tlk: Tensor) -> None:
        """Those of a draft that is refused are overwritten when its place is fed again."""
        if experts_tlk.shape[1]:
            real = self.step.real_t.numpy()
            experts = experts_tlk.numpy()[real].astype(np.uint16)
            self.rows.experts[self.owner_t[real], self.positions_t[real]] = experts
