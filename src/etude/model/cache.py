"""The cache of latents, and where one step of `extend` reads and writes in it.

Invariant: a step writes the latents of its own tokens, at [start, start + length) of their slots, and nothing else that
is ever read: padded tokens go to one spare slot behind the last. What lies behind a slot's live part is garbage of
earlier steps, always masked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from etude.model.config import ModelConfig
from etude.model.errors import CacheOverrun


class LatentCache:
    """Per layer [slots + 1, context, latent width]. The first MTP head has a layer of its own, the last."""

    def __init__(
        self,
        config: ModelConfig,
        slots: int,
        context: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        self.slots = slots
        self.context = context
        self.layers = config.num_hidden_layers + min(1, config.num_nextn_predict_layers)
        self.latents = torch.zeros(self.layers, slots + 1, context, config.latent_width, dtype=dtype, device=device)
        self._gathered = self.latents.new_empty(0)

    def copy_prefix(self, source: int, targets: Sequence[int], length: int) -> None:
        """Shares the first `length` positions of one slot with others.

        An MTP latent also depends on the token after its own, so the one at length - 1 belongs to the source's
        continuation. Only drafts see it: run `draft` again from there where the continuation differs.
        """
        prefix = self.latents[:, source, :length].clone()
        self.latents[:, torch.as_tensor(targets, device=self.latents.device), :length] = prefix.unsqueeze(1)

    def step(
        self, slots_b: Tensor, starts_b: Tensor, lengths_b: Tensor, tokens: int, window: int | None = None
    ) -> CacheStep:
        """Plans one step of `tokens` tokens per row, of which the first lengths_b[i] are real in row i.

        window bounds the positions attended to, for callers that know the longest live context; None measures it.
        """
        needed = int((starts_b + lengths_b).max())
        if needed > self.context:
            raise CacheOverrun(f"position {needed - 1} does not fit a cache of {self.context} positions")
        if window is not None and window < needed:
            raise CacheOverrun(f"window {window} is shorter than the longest row, {needed} positions")
        width = needed if window is None else min(window, self.context)
        offsets = torch.arange(tokens, device=slots_b.device)
        positions_bn = starts_b[:, None] + offsets
        real_bn = offsets < lengths_b[:, None]
        places_bn = torch.where(real_bn, slots_b[:, None] * self.context + positions_bn, self.slots * self.context)
        hidden_bnw = torch.arange(width, device=slots_b.device) > positions_bn[..., None]
        bias_bnw = torch.zeros(hidden_bnw.shape, dtype=self.latents.dtype, device=slots_b.device)
        bias_bnw.masked_fill_(hidden_bnw, float("-inf"))
        scratch = self._scratch(len(slots_b), width)
        return CacheStep(positions_bn, real_bn, places_bn.flatten(), slots_b, width, bias_bnw.unsqueeze(2), scratch)

    def _scratch(self, rows: int, window: int) -> Tensor:
        shape = (rows, window, self.latents.shape[-1])
        if self._gathered.numel() < math.prod(shape):
            self._gathered = torch.empty(math.prod(shape), dtype=self.latents.dtype, device=self.latents.device)
        return self._gathered[: math.prod(shape)].view(shape)


@dataclass(frozen=True, slots=True)
class CacheStep:
    """What all layers of one step share."""

    positions_bn: Tensor
    real_bn: Tensor
    places: Tensor
    """Flat index of every token's latent."""
    slots_b: Tensor
    window: int
    bias_bn1w: Tensor
    scratch_bsw: Tensor
    """Where the layers gather their rows: memory that is already mapped, layer after layer and step after step."""

    def of(self, cache: LatentCache, layer: int) -> LayerStep:
        return LayerStep(self, cache.latents[layer])


@dataclass(frozen=True, slots=True)
class LayerStep:
    step: CacheStep
    latents: Tensor

    def write(self, latent_bnw: Tensor) -> None:
        self.latents.view(-1, latent_bnw.shape[-1]).index_copy_(0, self.step.places, latent_bnw.flatten(0, 1))

    def read(self) -> Tensor:
        """[rows, window, latent width], valid until the next layer reads.

        A copy even where a view would do: matmuls on the strided view cost more.
        """
        live = self.latents[:, : self.step.window]
        return torch.index_select(live, 0, self.step.slots_b, out=self.step.scratch_bsw)
