"""Rotary position embedding: `Rope` describes it, `Rotary` and `Rotation` compute it, always in fp32.

Each pair of dimensions of a query or key is rotated by an angle that grows with the position. A rotated head has the
first components of all pairs, then the second ones, however the pairs lie in the input. Queries and keys share that
order, so their dot products are unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from etude.model.errors import ModelError


@dataclass(frozen=True, slots=True)
class Yarn:
    """Settings of YaRN, which rescales the rotary frequencies to extend the context. The defaults are as published."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 1.0
    attention_factor: float | None = None
    """Factor of the cosines and sines; None computes it from `factor`, `mscale` and `mscale_all_dim`."""
    truncate: bool = True
    """Whether the first and last interpolated pair are rounded to whole pairs."""

    @property
    def rotation_scale(self) -> float:
        """Factor by which YaRN multiplies the rotary cosines and sines."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._magnitude(self.mscale) / self._magnitude(self.mscale_all_dim)
        return self._magnitude(1.0)

    @property
    def softmax_scale(self) -> float:
        """Factor by which YaRN multiplies the attention scores of latent attention."""
        return self._magnitude(self.mscale_all_dim) ** 2 if self.mscale_all_dim else 1.0

    def _magnitude(self, mscale: float) -> float:
        return 1.0 if self.factor <= 1 else 0.1 * mscale * math.log(self.factor) + 1.0


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Divides low frequencies by a factor and leaves high ones, with a smooth transition, as Llama 3.1 does."""

    factor: float
    original_max_position_embeddings: int
    low_freq_factor: float
    """Pairs that make fewer turns than this in the original context are divided by the whole factor."""
    high_freq_factor: float
    """Pairs that make more turns than this in the original context are left alone."""


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Divides all frequencies by one factor."""

    factor: float


@dataclass(frozen=True, slots=True)
class Rope:
    theta: float
    """Base of the rotary frequencies."""
    scaling: Yarn | Llama3Scaling | LinearScaling | None = None
    """How the frequencies are rescaled to extend the context."""
    interleaved: bool = False
    """Whether a pair is two adjacent dimensions; else the two halves of the rotated dimensions form the pairs."""

    def extended(self, factor: float, trained: int) -> Rope:
        """Return this embedding for a context `factor` times as long; `trained` is the context it was trained with. A
        network without scaling gets YaRN."""
        if isinstance(self.scaling, LinearScaling):
            raise ModelError("a network with linearly scaled rotary frequencies cannot be extended further")
        if self.scaling is None:
            return replace(self, scaling=Yarn(factor=factor, original_max_position_embeddings=trained))
        return replace(self, scaling=replace(self.scaling, factor=self.scaling.factor * factor))


@dataclass(frozen=True, slots=True)
class Rotation:
    """The rotation at the positions of a batch's tokens."""

    cos: Tensor
    """Cosines of the angles, [B, T, 1, pairs]."""
    sin: Tensor
    interleaved: bool
    turn: Callable[[Tensor, Tensor, Tensor, bool], Tensor]

    def __call__(self, x_bthd: Tensor) -> Tensor:
        """Rotate queries or keys. Dimensions beyond the last pair are left as they are."""
        return self.turn(x_bthd, self.cos, self.sin, self.interleaved)


def turned(x_bthd: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotate the first dimensions, as many as there are angles for."""
    width = 2 * cos.shape[-1]
    if width == x_bthd.shape[-1]:
        return cast(Tensor, _Turned.apply(x_bthd, cos, sin, interleaved))
    return torch.cat((turned(x_bthd[..., :width], cos, sin, interleaved), x_bthd[..., width:]), dim=-1)


class _Turned(torch.autograd.Function):
    """The gradient is rotated back; torch alone would take three times as many passes over it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.interleaved = interleaved
        wide = x.to(torch.float32)
        first, second = wide.unflatten(-1, (-1, 2)).unbind(-1) if interleaved else wide.chunk(2, -1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        first, second = grads[0].to(torch.float32).chunk(2, -1)
        parts = torch.addcmul(first * cos, second, sin), torch.addcmul(second * cos, first, sin, value=-1)
        dx = torch.stack(parts, dim=-1).flatten(-2) if ctx.interleaved else torch.cat(parts, dim=-1)
        return dx.to(grads[0].dtype), None, None, None


class Rotary:
    """Computes the rotation of `width` dimensions from positions. It has no parameters, so checkpoints lack it."""

    def __init__(self, rope: Rope, width: int) -> None:
        self._frequencies = frequencies(width, rope)
        self._scale = rope.scaling.rotation_scale if isinstance(rope.scaling, Yarn) else 1.0
        self._interleaved = rope.interleaved
        self.turn: Callable[[Tensor, Tensor, Tensor, bool], Tensor] = turned
        """How queries and keys are rotated: `turned`, or what a compiler made of it."""

    def __call__(self, positions_bt: Tensor) -> Rotation:
        if self._frequencies.device != positions_bt.device:
            self._frequencies = self._frequencies.to(positions_bt.device)
        angles = positions_bt.to(torch.float32)[..., None, None] * self._frequencies
        cos, sin = angles.cos(), angles.sin()
        if self._scale != 1:
            cos, sin = cos * self._scale, sin * self._scale
        return Rotation(cos, sin, self._interleaved, self.turn)


def frequencies(width: int, rope: Rope) -> Tensor:
    """Return for each pair of dimensions the rotation per position, in radians."""
    powers = rope.theta ** (torch.arange(0, width, 2, dtype=torch.float32, device="cpu") / width)
    match rope.scaling:
        case None:
            return 1.0 / powers
        case LinearScaling(factor):
            return 1.0 / (factor * powers)
        case Llama3Scaling() as llama:
            turns = llama.original_max_position_embeddings / (2 * math.pi * powers)
            span = llama.high_freq_factor - llama.low_freq_factor
            kept = ((turns - llama.low_freq_factor) / span).clamp(0, 1)
            return kept / powers + (1 - kept) / (llama.factor * powers)
        case Yarn() as yarn:
            low = _dimension_of(yarn.beta_fast, width, rope.theta, yarn)
            high = _dimension_of(yarn.beta_slow, width, rope.theta, yarn)
            if yarn.truncate:
                low, high = math.floor(low), math.ceil(high)
            low, high = max(low, 0), min(high, width - 1)
            span = high - low if high != low else 0.001
            interpolated = ((torch.arange(width // 2, dtype=torch.float32, device="cpu") - low) / span).clamp(0, 1)
            return interpolated / (yarn.factor * powers) + (1 - interpolated) / powers


def _dimension_of(rotations: float, width: int, theta: float, yarn: Yarn) -> float:
    """Return the (fractional) index of the dimension pair that makes `rotations` full turns in the original context."""
    original = yarn.original_max_position_embeddings
    return width * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))
