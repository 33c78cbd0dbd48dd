"""The latent cache: the latents of earlier tokens, which attention reads, in one slot per sequence.

Invariant: a step (step.py) writes the latents of its tokens at [start, start + length) of their slots. Its padding
tokens are written to one spare slot after the last, which is never read. Positions beyond a sequence's current length
may hold stale latents of earlier steps; attention always masks them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from etude.model.config import ModelConfig
from etude.model.step import Step


class LatentCache:
    """Latents of all layers, the first MTP head's included: [layers, slots + 1, context, latent width]."""

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
        self.heads = config.num_attention_heads
        self.invariant = invariant
        self.layers = config.num_hidden_layers + min(1, config.num_nextn_predict_layers)
        self.latents = torch.zeros(self.layers, slots + 1, context, config.latent_width, dtype=dtype, device=device)
        self._gathered = self.latents.new_empty(0)

    def copy_prefix(self, source: int, targets: Sequence[int], length: int) -> None:
        """Copy the first `length` positions of one slot to other slots.

        The first MTP head's latent at length - 1 also depends on the token after it. For targets with another token
        there, run `Transformer.draft` again from position length - 1; nothing else reads the head's latents.
        """
        prefix = self.latents[:, source, :length].clone()
        self.latents[:, torch.as_tensor(targets, device=self.latents.device), :length] = prefix.unsqueeze(1)

    @property
    def spare(self) -> int:
        """Flat index, within one layer, of the spare slot that receives the latents of padding tokens."""
        return self.slots * self.context

    def step(self, slots_b: Tensor, starts_b: Tensor, lengths_b: Tensor) -> Step:
        """Plan a pass: lengths_b[b] tokens go to slot slots_b[b], from position starts_b[b] on. Slots are distinct."""
        plan = Step.plan_tight if self.invariant else Step.plan
        return plan(self, slots_b, starts_b, lengths_b)

    def scratch(self, pieces: int, window: int) -> Tensor:
        """Return a buffer [pieces, window, latent width] for gathered latents. Every call reuses the same memory."""
        shape = (pieces, window, self.latents.shape[-1])
        if self._gathered.numel() < math.prod(shape):
            self._gathered = torch.empty(math.prod(shape), dtype=self.latents.dtype, device=self.latents.device)
        return self._gathered[: math.prod(shape)].view(shape)
