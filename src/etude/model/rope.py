"""Rotary position embedding with YaRN. Always computed in fp32.

`rotate` reads pairs of adjacent dimensions, as published, but returns the rotated pairs in another order: first the
first components of all pairs, then the second ones. Queries and keys share that order, so their dot products are
unchanged.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from etude.model.config import Rope, Yarn


class Rotary:
    """Computes cosines and sines of the rotary angles from positions. It has no parameters, so checkpoints lack it."""

    def __init__(self, rope: Rope, width: int) -> None:
        self._frequencies = frequencies(width, rope)
        self._scale = rope.scaling.rotation_scale if rope.scaling else 1.0

    def __call__(self, positions_bt: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, [B, T, 1, half of the rotary width]."""
        angles = positions_bt.to(torch.float32)[..., None, None] * self._frequencies.to(positions_bt.device)
        cos, sin = angles.cos(), angles.sin()
        return (cos, sin) if self._scale == 1 else (cos * self._scale, sin * self._scale)


def rotate(x_bthr: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Apply the rotary embedding to queries or keys; `rotation` holds the cosines and sines."""
    cos, sin = rotation
    even, odd = x_bthr.unflatten(-1, (-1, 2)).to(torch.float32).unbind(-1)
    return torch.cat((even * cos - odd * sin, odd * cos + even * sin), dim=-1).to(x_bthr.dtype)


def frequencies(width: int, rope: Rope) -> Tensor:
    """Return for each pair of dimensions the rotation per position, in radians."""
    theta, yarn = rope.theta, rope.scaling
    powers = theta ** (torch.arange(0, width, 2, dtype=torch.float32, device="cpu") / width)
    if yarn is None:
        return 1.0 / powers
    low = max(math.floor(_dimension_of(yarn.beta_fast, width, theta, yarn)), 0)
    high = min(math.ceil(_dimension_of(yarn.beta_slow, width, theta, yarn)), width - 1)
    span = high - low if high != low else 0.001
    interpolated = ((torch.arange(width // 2, dtype=torch.float32, device="cpu") - low) / span).clamp(0, 1)
    return interpolated / (yarn.factor * powers) + (1 - interpolated) / powers


def _dimension_of(rotations: float, width: int, theta: float, yarn: Yarn) -> float:
    """Return the (fractional) index of the dimension pair that makes `rotations` full turns in the original context."""
    original = yarn.original_max_position_embeddings
    return width * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))
