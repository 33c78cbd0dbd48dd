"""The tokens that one decode step feeds to the network: those of every live row whose entries are not cached yet.

A decoding row feeds its pending token and its draft, if it has one. A row that has just begun feeds the part of its
prompt that was not cached, which always includes the last token. One pass processes all rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from etude.engine.builtin.rows import Ints, Rows
from etude.model import Cache
from etude.model.step import Step
from etude.model.transfer import to_cpu, to_device


@dataclass(frozen=True, slots=True)
class Feeding:
    """The flat list of tokens that one step feeds."""

    rows: Rows
    step: Step
    owner_t: Ints
    """The cache row of each token."""
    positions_t: Ints
    """The position of each token in its cache row."""
    pending_b: Tensor
    """For each live row, the index of its pending token (its last, not yet fed) among the tokens that this step feeds.
    If the row has a draft token, that is the next one. On the CPU."""

    @classmethod
    def of(cls, rows: Rows, active: Ints, drafted_b: np.ndarray, cache: Cache) -> Feeding:
        """Plan the step of the rows `active`. `drafted_b` is 1 for rows with a draft, else 0."""
        starts = rows.filled[active]
        lengths = rows.position[active] + 1 + drafted_b - starts
        step = cache.step(torch.from_numpy(active), torch.from_numpy(starts), torch.from_numpy(lengths))
        # Padding at the end of a row may have positions beyond the context.
        positions = np.minimum(step.positions_t.numpy(), rows.context - 1)
        pending = step.first_b + torch.from_numpy(lengths - 1 - drafted_b)
        return cls(rows, step, active[step.rows_t.numpy()], positions, pending)

    def tokens(self) -> tuple[Tensor, Tensor]:
        """Return the ids of all fed tokens but the drafts, which the caller fills in, and `pending_b`, both on the
        network's device."""
        tokens, pending = to_device([self._ids(0), self.pending_b], self.step.rotated_t.device)
        return tokens, pending

    def following(self, read_r: Tensor) -> tuple[Tensor, Tensor]:
        """Return the token after each fed one, which the draft head reads together with the hidden state, and `read_r`,
        both on the network's device."""
        following, read = to_device([self._ids(1), read_r], self.step.rotated_t.device)
        return following, read

    def _ids(self, later: int) -> Tensor:
        return torch.from_numpy(self.rows.tokens[self.owner_t, self.positions_t + later])

    def write_experts(self, experts_tlk: Tensor) -> None:
        """Store in `rows` the experts to which the network routed each fed token. A rejected draft's entry is
        overwritten when its position is fed again."""
        if experts_tlk.shape[1]:
            real = self.step.real_t.numpy()
            (narrow,) = to_cpu([experts_tlk.to(torch.int16)])
            experts = narrow.numpy()[real].view(np.uint16)
            self.rows.experts[self.owner_t[real], self.positions_t[real]] = experts
