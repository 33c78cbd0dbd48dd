"""The cache: the entries of earlier tokens, which attention reads, in one slot per sequence.

An entry is what one token leaves behind in one layer and one group of heads. Under latent attention there is one group,
and the entry is the latent with the rotary key, of which all heads make their keys and values.

Invariant: a step (step.py) writes the entries of its tokens at [start, start + length) of their slots. Its padding
tokens are written to one spare slot after the last, which is never read. Positions beyond a sequence's current length
may hold stale entries of earlier steps; attention always masks them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from etude.model.config import ModelConfig
from etude.model.step import Step


class Cache:
    """Entries of all layers, the first MTP head's included: [layers, slots + 1, groups, context, width]."""

    def __init__(
        self,
        config: ModelConfig,
        slots: int,
        context: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        *,
        invariant: bool = False,
    ) -> None:
        """With `invariant`, steps are planned so that no sequence's result depends on the others of the step."""
        self.slots = slots
        self.context = context
        self.heads = config.heads_per_group
        """Heads per group."""
        self.invariant = invariant
        self.layers = config.num_hidden_layers + min(1, config.num_nextn_predict_layers)
        groups, width = config.cache_shape
        self.entries = torch.zeros(self.layers, slots + 1, groups, context, width, dtype=dtype, device=device)
        self._gathered = self.entries.new_empty(0)

    def move(self, device: torch.device | str) -> None:
        """Move the entries to a device; those of the scratch buffer are not kept."""
        self.entries = self.entries.to(device)
        self._gathered = self.entries.new_empty(0)

    def copy_prefix(self, source: int, targets: Sequence[int], length: int) -> None:
        """Copy the first `length` positions of one slot to other slots.

        The first MTP head's entry at length - 1 also depends on the token after it. For targets with another token
        there, run `Transformer.draft` again from position length - 1; nothing else reads the head's entries.
        """
        prefix = self.entries[:, source, :, :length].clone()
        self.entries[:, torch.as_tensor(targets, device=self.entries.device), :, :length] = prefix.unsqueeze(1)

    def step(self, slots_b: Tensor, starts_b: Tensor, lengths_b: Tensor) -> Step:
        """Plan a pass: lengths_b[b] tokens go to slot slots_b[b], from position starts_b[b] on. Slots are distinct. The
        plan is made on the CPU: tensors of another device are copied there."""
        plan = Step.plan_tight if self.invariant else Step.plan
        return plan(self, slots_b.cpu(), starts_b.cpu(), lengths_b.cpu())

    def scratch(self, pieces: int, window: int) -> Tensor:
        """Return a buffer [pieces, groups, window, width] for gathered entries. Every call reuses the same memory."""
        shape = (pieces, self.entries.shape[2], window, self.entries.shape[-1])
        if self._gathered.numel() < math.prod(shape):
            self._gathered = torch.empty(math.prod(shape), dtype=self.entries.dtype, device=self.entries.device)
        return self._gathered[: math.prod(shape)].view(shape)
