"""Generation on the cache computes the same function as a whole forward pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from etude.model import Cache, CacheOverrun, ModelError, Transformer, config_from_recipe
from etude.model import step as step_module
from etude.model.step import NARROW, PIECES_STEP, WIDE, Step
from etude.recipe.model import ModelRecipe

LENGTHS = [23, 9, 16, 30]
SLOTS = torch.tensor([2, 0, 5, 3])


def long(*values: int) -> Tensor:
    return torch.tensor(values)


STRANGE = 60
"""A token that would disturb if it were seen."""


def listed(step: Step, tokens: Tensor) -> Tensor:
    """tokens[b, p] wherever row b has its position p in the step's list, the strange token in padding."""
    return torch.where(step.real_t, tokens[step.rows_t, step.positions_t.clamp(max=tokens.shape[1] - 1)], STRANGE)


def of_row(step: Step, row: int, count: int) -> Tensor:
    """Where the row's tokens lie in the list."""
    return step.first_b[row] + torch.arange(count)


def feed(model: Transformer, cache: Cache, tokens: Tensor, plan: list[list[int]]) -> list[Tensor]:
    """Feeds row i of tokens in pieces plan[..][i]; the logits of every real position, per row."""
    starts, got = torch.zeros(4, dtype=torch.int64), [list[Tensor]() for _ in range(4)]
    for piece in plan:
        lengths = torch.tensor(piece)
        step = cache.step(SLOTS, starts, lengths)
        out = model.extend(listed(step, tokens), step)
        for i in range(4):
            got[i].append(out.logits_rv[of_row(step, i, piece[i])])
        starts = starts + lengths
    return [torch.cat(parts) for parts in got]


PLANS = {
    "whole": [LENGTHS],
    "prefill_then_single": [[20, 6, 13, 27], *([[1, 1, 1, 1]] * 3)],
    "one_or_two": [[20, 6, 13, 27], [1, 2, 1, 2], [2, 1, 0, 1], [0, 0, 2, 0]],
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_the_cache_equals_the_whole_forward(shaped: Transformer, tokens_of: Any, plan: list[list[int]]) -> None:
    tokens = tokens_of(4, 30)
    cache = Cache(shaped.config, slots=6, context=40)
    cache.entries.normal_(generator=torch.Generator().manual_seed(0))
    got = feed(shaped, cache, tokens, plan)
    with torch.no_grad():
        expected = shaped(tokens).logits_btv
    for i, length in enumerate(LENGTHS):
        torch.testing.assert_close(got[i], expected[i, :length], rtol=1e-5, atol=1e-5)


def test_experts_hidden_states_and_logits_where_they_are_read(model_of: Any, tokens_of: Any) -> None:
    model, tokens = model_of(), tokens_of(4, 30)
    with torch.no_grad():
        whole = model(tokens)
    cache = Cache(model.config, slots=6, context=40)
    lengths = torch.tensor(LENGTHS)
    step = cache.step(SLOTS, torch.zeros_like(lengths), lengths)
    out = model.extend(listed(step, tokens), step, step.first_b + lengths - 1)
    assert out.logits_rv.shape == (4, 61)
    for i, n in enumerate(LENGTHS):
        at = of_row(step, i, n)
        assert torch.equal(out.experts_tlk[at], whole.experts_btlk[i, :n])
        torch.testing.assert_close(out.hidden_th[at], whole.hidden_bth[i, :n], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(out.logits_rv[i], whole.logits_btv[i, n - 1], rtol=1e-5, atol=1e-5)


@given(
    rows=st.lists(st.tuples(st.integers(0, 39), st.integers(0, 40)), min_size=1, max_size=12),
    numbers=st.sampled_from([4096, 1 << 23]),
)
def test_a_step_lists_every_token_once(rows: list[tuple[int, int]], numbers: int) -> None:
    starts = torch.tensor([start for start, _ in rows])
    lengths = torch.tensor([min(length, 40 - start) for start, length in rows])
    config = config_from_recipe(ModelRecipe(), 61)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_module, "NUMBERS_AT_ONCE", numbers)
        step = Cache(config, 12, 40).step(torch.arange(len(rows)), starts, lengths)
    listed = torch.stack((step.rows_t, step.positions_t), 1)[step.real_t].tolist()
    wanted = [[b, p] for b, n in enumerate(lengths.tolist()) for p in range(int(starts[b]), int(starts[b]) + n)]
    assert sorted(listed) == wanted
    for b, n in enumerate(lengths.tolist()):
        assert step.positions_t[of_row(step, b, n)].tolist() == list(range(int(starts[b]), int(starts[b]) + n))
    assert [part.end for part in step.parts[:-1]] == [part.first for part in step.parts[1:]]
    assert step.parts[-1].end == step.rows_t.numel()
    padding = step.rows_t.numel() - len(wanted)
    assert padding < len(rows) * WIDE + PIECES_STEP * (WIDE + NARROW)
    for part in step.parts:
        seen = (part.bias_xns == 0).sum(-1).view(-1, config.heads_per_group)[:, 0]
        real = step.real_t[part.first : part.end]
        assert torch.equal(seen[real], step.positions_t[part.first : part.end][real] + 1)
        assert part.scratch_pgsw.numel() <= max(numbers, 40 * config.cache_shape[1])


def test_attention_in_many_parts_changes_nothing(
    model_of: Any, tokens_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokens = model_of(), tokens_of(4, 30)
    at_once = feed(model, Cache(model.config, 6, 40), tokens, [LENGTHS])
    monkeypatch.setattr(step_module, "NUMBERS_AT_ONCE", 3 * 32 * model.config.cache_shape[1])
    in_parts = feed(model, Cache(model.config, 6, 40), tokens, [LENGTHS])
    for a, b in zip(at_once, in_parts, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_bf16_is_near(model_of: Any, tokens_of: Any) -> None:
    model = model_of(initializer_range=0.05).to(torch.bfloat16)
    tokens = tokens_of(4, 30)
    got = feed(model, Cache(model.config, 6, 40, torch.bfloat16), tokens, PLANS["one_or_two"])
    with torch.no_grad():
        expected = model(tokens).logits_btv
    for i, length in enumerate(LENGTHS):
        assert (got[i] - expected[i, :length]).norm() < 0.05 * expected[i, :length].norm()


def test_drafts_equal_the_mtp_head(with_head: Transformer, tokens_of: Any) -> None:
    tokens = tokens_of(4, 30)
    with torch.no_grad():
        output = with_head(tokens)
        expected = with_head.mtp_logits(output, tokens).logits[0]
    cache = Cache(with_head.config, slots=6, context=40)
    starts, lengths = torch.zeros(4, dtype=torch.int64), torch.tensor([10, 4, 12, 20])
    for _ in range(4):
        step = cache.step(SLOTS, starts, lengths)
        hidden = torch.where(step.real_t[:, None], output.hidden_bth[step.rows_t, step.positions_t.clamp(max=29)], 9.0)
        last = starts + lengths - 1
        got = with_head.draft(hidden, listed(step, tokens.roll(-1, 1)), step, step.first_b + lengths - 1)
        torch.testing.assert_close(got, expected[range(4), last], rtol=1e-5, atol=2e-5)
        starts, lengths = last + 1, torch.ones_like(lengths)


def test_a_prefix_is_shared(model_of: Any, tokens_of: Any) -> None:
    model = model_of()
    tokens = tokens_of(3, 20)
    tokens[:, :12] = tokens[0, :12]
    cache = Cache(model.config, slots=4, context=32)
    step = cache.step(long(1), long(0), long(12))
    model.extend(listed(step, tokens), step)
    cache.copy_prefix(1, [0, 3], 12)
    step = cache.step(long(1, 0, 3), long(12, 12, 12), long(8, 8, 8))
    out = model.extend(listed(step, tokens), step)
    with torch.no_grad():
        expected = model(tokens).logits_btv
    for i in range(3):
        torch.testing.assert_close(out.logits_rv[of_row(step, i, 8)], expected[i, 12:], rtol=1e-5, atol=1e-5)


def test_overruns_are_named(model_of: Any, tokens_of: Any) -> None:
    model = model_of(num_nextn_predict_layers=0)
    cache = Cache(model.config, slots=2, context=16)
    with pytest.raises(CacheOverrun, match="16 positions"):
        cache.step(long(0), long(13), long(4))
    step = cache.step(long(0), long(0), long(1))
    with pytest.raises(ModelError, match="no MTP head"):
        model.draft(torch.zeros(16, 32), tokens_of(1, 16)[0], step, step.first_b)
