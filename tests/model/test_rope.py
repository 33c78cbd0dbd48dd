from __future__ import annotations

import dataclasses

import pytest
import torch

from etude.model import ModelError
from etude.model.rope import LinearScaling, Llama3Scaling, Rope, Rotary, Yarn

THETA = 1000.0


@pytest.mark.parametrize("interleaved", [False, True])
def test_pairs_turn_and_the_other_dimensions_stay(interleaved: bool) -> None:
    """As complex numbers, of ten dimensions of which six are rotated."""
    x, positions = torch.randn(2, 5, 3, 10), torch.tensor([[0, 1, 2, 3, 9], [4, 4, 0, 7, 100]])
    first, second = ([0, 2, 4], [1, 3, 5]) if interleaved else ([0, 1, 2], [3, 4, 5])
    angle = positions[..., None, None] * THETA ** (-torch.tensor([0, 2, 4]) / 6)
    turned = torch.complex(x[..., first], x[..., second]) * torch.polar(torch.ones_like(angle), angle)
    expected = torch.cat((turned.real, turned.imag, x[..., 6:]), dim=-1)
    torch.testing.assert_close(Rotary(Rope(THETA, None, interleaved), 6)(positions)(x), expected)


def test_an_extended_context_multiplies_what_is_there() -> None:
    assert Rope(THETA).extended(4.0, 320) == Rope(THETA, Yarn(4.0, 320))
    llama = Rope(THETA, Llama3Scaling(8.0, 64, 1.0, 4.0))
    assert llama.extended(2.0, 512).scaling == dataclasses.replace(llama.scaling, factor=16.0)
    with pytest.raises(ModelError, match="linearly scaled"):
        Rope(THETA, LinearScaling(3.0)).extended(2.0, 512)


@pytest.mark.parametrize("interleaved", [False, True])
def test_the_gradient_is_that_of_the_rotation(interleaved: bool) -> None:
    x = torch.randn(1, 5, 2, 12, generator=torch.Generator().manual_seed(0), requires_grad=True)
    rotation = Rotary(Rope(100.0, interleaved=interleaved), 8)(torch.arange(5)[None])
    slope = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    (found,) = torch.autograd.grad(rotation(x), x, slope)
    # A rotation is linear: its gradient is the transpose of its matrix, which the rotated unit vectors are the rows of.
    units = rotation(torch.eye(12).view(12, 1, 1, 12).expand(12, 5, 1, 12)).squeeze(2)
    torch.testing.assert_close(found[0], torch.einsum("kti,thi->thk", units, slope[0]))
