"""Ragged loads of experts: some have no token, some one, and no number of rows is a whole number of tiles."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

LOADS = ([0, 5, 0, 17, 1, 33, 0], [0, 0], [0, 32, 31])


def ends_of(load: list[int]) -> Tensor:
    return torch.tensor(load).cumsum(0).int()


@st.composite
def picks(draw: st.DrawFn) -> tuple[Tensor, int]:
    """Experts [N, K] of up to 12 tokens, distinct for each token, and how many experts there are."""
    experts = draw(st.integers(1, 6))
    choices = draw(st.integers(1, min(3, experts)))
    seed, tokens = draw(st.integers(0, 2**20)), draw(st.integers(0, 12))
    # Favourites, so that some experts have no tokens.
    weight = torch.rand(tokens, experts, generator=torch.Generator().manual_seed(seed))
    weight[:, : experts // 2] += 0.5
    return weight.topk(choices).indices, experts
