from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from etude.model import Cache
from etude.model import attend as attend_module
from etude.model.attend import Mask, attend
from etude.model.pieces import Packed

HEADS, GROUPS, LENGTH = 6, 2, 40


@pytest.mark.parametrize("long", [False, True], ids=["short", "long"])
@pytest.mark.parametrize("packed", [False, True])
def test_heads_of_a_group_share_its_keys(packed: bool, long: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attend_module, "LONG_IN_FP32", 8 if long else 64)
    monkeypatch.setattr(attend_module, "QUERY_BLOCK", 16)
    make = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, n, LENGTH, w, generator=make) for n, w in ((HEADS, 8), (GROUPS, 8), (GROUPS, 5)))
    documents = (torch.arange(LENGTH) // 15).expand(2, -1) if packed else None
    mask = Mask.build(LENGTH, documents, torch.float32, torch.device("cpu"))
    seen = torch.ones(LENGTH, LENGTH).tril() > 0
    if documents is not None:
        seen &= documents[0, :, None] == documents[0, None]
    k_each, v_each = (x.repeat_interleave(HEADS // GROUPS, 1) for x in (k, v))
    expected = (q @ k_each.mT * 0.3).masked_fill(~seen, float("-inf")).softmax(-1) @ v_each
    torch.testing.assert_close(attend(q, k, v, mask, 0.3), expected)
    if mask.bias is not None:  # as on a GPU
        torch.testing.assert_close(attend_module._attend_fused(q, k, v, mask.bias, 0.3), expected)


GROUPED: Any = SimpleNamespace(
    num_hidden_layers=1, num_nextn_predict_layers=0, cache_shape=(GROUPS, 13), heads_per_group=HEADS // GROUPS
)
"""Entries of a key (8 numbers) and a value (5) in each of two groups."""


@pytest.mark.parametrize("invariant", [False, True])
def test_each_group_has_entries_of_its_own_in_the_cache(invariant: bool) -> None:
    make = torch.Generator().manual_seed(0)
    q_bthd, entries_btgw = (torch.randn(2, 150, *shape, generator=make) for shape in ((HEADS, 8), (GROUPS, 13)))
    mask = Mask.build(150, None, torch.float32, torch.device("cpu"))
    keys, values = entries_btgw.transpose(1, 2).split((8, 5), dim=-1)
    expected = attend(q_bthd.transpose(1, 2), keys, values, mask, 0.3).transpose(1, 2)
    cache = Cache(GROUPED, 4, 170, invariant=invariant)
    cache.entries.normal_(generator=make)
    starts = torch.zeros(2, dtype=torch.int64)
    for lengths in (torch.tensor(fed) for fed in ([100, 4], [1, 1], [49, 9])):
        step = cache.step(torch.tensor([3, 1]), starts, lengths)
        at = (step.rows_t, step.positions_t.clamp(max=149))
        got = step.of(0).attend(q_bthd[at], entries_btgw[at], 0.3, values_from=8)
        torch.testing.assert_close(got[step.real_t], expected[at][step.real_t])
        starts = starts + lengths


def test_each_group_has_entries_of_its_own_in_an_invariant_pass() -> None:
    make = torch.Generator().manual_seed(0)
    inputs = [torch.randn(2 * LENGTH, *shape, generator=make) for shape in ((HEADS, 8), (GROUPS, 13))]
    q, entries = (x.requires_grad_() for x in inputs)
    documents = (torch.arange(LENGTH) // 15).expand(2, -1)
    mask = Mask.build(LENGTH, documents, torch.float32, torch.device("cpu"))
    got = Packed.of(mask, documents, GROUPS, HEADS // GROUPS).attend(q, entries, 0.3, values_from=8)
    q_bhtd, entries_bgtw = (x.unflatten(0, (2, -1)).transpose(1, 2) for x in (q, entries))
    expected = attend(q_bhtd, *entries_bgtw.split((8, 5), dim=-1), mask, 0.3).transpose(1, 2).flatten(0, 1)
    torch.testing.assert_close(got, expected)
    weight = torch.randn(expected.shape, generator=make)
    found = torch.autograd.grad((got * weight).sum(), (q, entries))
    torch.testing.assert_close(found, torch.autograd.grad((expected * weight).sum(), (q, entries)))
