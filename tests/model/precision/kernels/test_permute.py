"""Where the rows of experts lie, and the way there and back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.model.precision.kernels.loads import picks
from torch import Tensor

from etude.model.placing import place_pairs
from etude.model.precision.kernels import reference

pytest.importorskip("triton")
from etude.model.precision.kernels import in_triton


def drawn(seed: int, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@given(picks(), st.sampled_from([1, 4, 32]))
def test_each_pair_has_a_row_of_its_expert(picked: tuple[Tensor, int], multiple: int) -> None:
    experts_nk, experts = picked
    found = place_pairs(experts_nk, experts, multiple=multiple)
    starts, ends = [0, *found.ends_e.tolist()[:-1]], found.ends_e.tolist()
    assert all(end % multiple == 0 for end in ends)
    assert found.token_r.numel() >= max(ends)
    assert found.token_r.numel() % multiple == 0
    for expert, (start, end) in enumerate(zip(starts, ends, strict=True)):
        tokens = (experts_nk == expert).any(-1).nonzero().flatten().tolist()
        assert end - start == -(-len(tokens) // multiple) * multiple
        assert found.token_r[start:end].tolist() == tokens + [-1] * (end - start - len(tokens))
    assert bool((found.token_r[max(ends) :] == -1).all())
    token = torch.arange(len(experts_nk))[:, None].expand_as(experts_nk)
    assert torch.equal(found.token_r[found.row_nk.long()].long(), token)


@given(picks(), st.sampled_from([1, 4]), st.integers(0, 9))
@settings(max_examples=5)
def test_kernels_move_what_the_reference_moves(picked: tuple[Tensor, int], multiple: int, seed: int) -> None:
    placement = place_pairs(*picked, multiple=multiple)
    x, y = drawn(seed, len(picked[0]), 20), drawn(seed + 1, placement.token_r.numel(), 20)
    gates = drawn(seed + 2, *picked[0].shape, dtype=torch.float32)
    for given_gates in (None, gates):
        moved = in_triton.permute(x, placement, given_gates)
        assert torch.equal(moved, reference.permute(x, placement, given_gates))
        assert bool((moved[placement.token_r < 0] == 0).all())
        back = in_triton.unpermute(y, placement, given_gates)
        assert torch.equal(back, reference.unpermute(y, placement, given_gates))
    found, wanted = (room.gate_gradients(x, y, placement) for room in (in_triton, reference))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_rows_wider_than_a_program_moves_at_a_time() -> None:
    placement = place_pairs(torch.tensor([[2, 0], [2, 1]]), 4, multiple=2)
    x, gates = drawn(0, 2, 2100), drawn(1, 2, 2, dtype=torch.float32)
    y = in_triton.permute(x, placement, gates)
    assert torch.equal(y, reference.permute(x, placement, gates))
    assert torch.equal(in_triton.unpermute(y, placement, gates), reference.unpermute(y, placement, gates))
    found, wanted = (room.gate_gradients(x, y, placement) for room in (in_triton, reference))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_each_way_is_the_gradient_of_the_other() -> None:
    """<permute(x), y> = <x, unpermute(y)>, with gates too: on integers, where sums are exact."""
    placement = place_pairs(torch.tensor([[2, 0], [2, 3], [0, 3]]), 5, multiple=4)
    x, y = drawn(2, 3, 24).mul(4).round(), drawn(3, placement.token_r.numel(), 24).mul(4).round()
    y[placement.token_r < 0] = 0
    for gates in (None, torch.tensor([[1.0, 2.0], [-1.0, 0.5], [4.0, 0.0]])):
        there = in_triton.permute(x, placement, gates).float() * y.float()
        back = x.float() * in_triton.unpermute(y, placement, gates).float()
        assert float(there.sum()) == float(back.sum())


def test_what_is_not_finite_stays_where_it_was() -> None:
    placement = place_pairs(torch.tensor([[1, 0], [1, 2]]), 3, multiple=2)
    x = drawn(4, 2, 16)
    x[0, 3], x[0, 4] = torch.nan, torch.inf
    moved = in_triton.permute(x, placement)
    assert (moved.isnan().any(-1).nonzero().flatten().tolist()) == sorted(placement.row_nk[0].tolist())
    back = in_triton.unpermute(moved, placement, torch.ones(2, 2))
    assert torch.equal(back[1], (x[1].float() * 2).bfloat16())
    assert back[0].isnan().nonzero().flatten().tolist() == [3]
