"""Generation on the cache computes the same function as a whole forward pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from etude.model import UNKNOWN, CacheOverrun, LatentCache, ModelError, Transformer
from etude.model import attention as attention_module

LENGTHS = [23, 9, 16, 30]
SLOTS = torch.tensor([2, 0, 5, 3])


def long(*values: int) -> Tensor:
    return torch.tensor(values)


def padded(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Rows of different lengths, filled up with a token that would disturb if it were seen."""
    lengths = torch.tensor([len(row) for row in rows])
    out = torch.full((len(rows), int(lengths.max())), 60)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out, lengths


def feed(model: Transformer, cache: LatentCache, tokens: Tensor, plan: list[list[int]], **options: Any) -> list[Tensor]:
    """Feeds row i of tokens in pieces plan[..][i]; the logits of every real position, per row."""
    starts, got = torch.zeros(4, dtype=torch.int64), [list[Tensor]() for _ in range(4)]
    for piece in plan:
        rows = [tokens[i, starts[i] : starts[i] + piece[i]] for i in range(4)]
        batch, lengths = padded(rows)
        out = model.extend(batch, SLOTS, starts, lengths, cache, **options)
        for i in range(4):
            got[i].append(out.logits_bnv[i, : piece[i]])
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
    cache = LatentCache(shaped.config, slots=6, context=40)
    cache.latents.normal_(generator=torch.Generator().manual_seed(0))
    got = feed(shaped, cache, tokens, plan)
    with torch.no_grad():
        expected = shaped(tokens).logits_btv
    for i, length in enumerate(LENGTHS):
        torch.testing.assert_close(got[i], expected[i, :length], rtol=1e-5, atol=1e-5)


def test_padding_writes_nowhere(model_of: Any, tokens_of: Any) -> None:
    model = model_of()
    cache = LatentCache(model.config, slots=6, context=40)
    cache.latents.fill_(7.0)
    model.extend(tokens_of(2, 8), long(4, 1), long(10, 36), long(5, 2), cache)
    written = (cache.latents[: model.config.num_hidden_layers, :6] != 7.0).any(-1).any(0)
    expected = torch.zeros(6, 40, dtype=torch.bool)
    expected[4, 10:15] = True
    expected[1, 36:38] = True
    assert torch.equal(written, expected)


def test_experts_hidden_states_and_last_logits(model_of: Any, tokens_of: Any) -> None:
    model, tokens = model_of(), tokens_of(4, 30)
    with torch.no_grad():
        whole = model(tokens)
    batch, lengths = padded([tokens[i, :n] for i, n in enumerate(LENGTHS)])
    cache = LatentCache(model.config, slots=6, context=40)
    zero = torch.zeros(4, dtype=torch.int64)
    out = model.extend(batch, SLOTS, zero, lengths, cache, logits="last")
    none = model.extend(batch, SLOTS, zero, lengths, cache, logits="none", window=40)
    assert out.logits_bnv.shape == (4, 1, 61)
    assert none.logits_bnv.shape == (4, 0, 61)
    for i, n in enumerate(LENGTHS):
        assert torch.equal(out.experts_bnlk[i, :n], whole.experts_btlk[i, :n])
        assert bool((out.experts_bnlk[i, n:] == UNKNOWN).all())
        torch.testing.assert_close(out.hidden_bnh[i, :n], whole.hidden_bth[i, :n], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(out.logits_bnv[i, 0], whole.logits_btv[i, n - 1], rtol=1e-5, atol=1e-5)


def test_scores_in_parts_change_nothing(model_of: Any, tokens_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = model_of(), tokens_of(4, 30)
    at_once = feed(model, LatentCache(model.config, 6, 40), tokens, [LENGTHS])
    monkeypatch.setattr(attention_module, "SCORES_AT_ONCE", 4 * 4 * 30 * 7)
    in_parts = feed(model, LatentCache(model.config, 6, 40), tokens, [LENGTHS])
    for a, b in zip(at_once, in_parts, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_bf16_is_near(model_of: Any, tokens_of: Any) -> None:
    model = model_of(initializer_range=0.05).to(torch.bfloat16)
    tokens = tokens_of(4, 30)
    got = feed(model, LatentCache(model.config, 6, 40, torch.bfloat16), tokens, PLANS["one_or_two"])
    with torch.no_grad():
        expected = model(tokens).logits_btv
    for i, length in enumerate(LENGTHS):
        assert (got[i] - expected[i, :length]).norm() < 0.05 * expected[i, :length].norm()


def test_drafts_equal_the_mtp_head(shaped: Transformer, tokens_of: Any) -> None:
    tokens = tokens_of(4, 30)
    with torch.no_grad():
        output = shaped(tokens)
        expected = shaped.mtp_logits(output, tokens).logits[0]
    cache = LatentCache(shaped.config, slots=6, context=40)
    prompt = [10, 4, 12, 20]
    hidden, lengths = torch.zeros(4, 20, 32), torch.tensor(prompt)
    following = torch.zeros(4, 20, dtype=torch.int64)
    for i, n in enumerate(prompt):
        hidden[i, :n], following[i, :n] = output.hidden_bth[i, :n], tokens[i, 1 : n + 1]
    starts = torch.zeros(4, dtype=torch.int64)
    got = shaped.draft(hidden, following, SLOTS, starts, cache, lengths_b=lengths)
    torch.testing.assert_close(got, expected[range(4), lengths - 1], rtol=1e-5, atol=2e-5)
    for step in range(3):
        at = lengths + step
        got = shaped.draft(output.hidden_bth[range(4), at, None], tokens[range(4), at + 1, None], SLOTS, at, cache)
        torch.testing.assert_close(got, expected[range(4), at], rtol=1e-5, atol=2e-5)


def test_a_prefix_is_shared(model_of: Any, tokens_of: Any) -> None:
    model = model_of()
    tokens = tokens_of(3, 20)
    tokens[:, :12] = tokens[0, :12]
    cache = LatentCache(model.config, slots=4, context=32)
    model.extend(tokens[:1, :12], long(1), long(0), long(12), cache)
    cache.copy_prefix(1, [0, 3], 12)
    out = model.extend(tokens[:, 12:], long(1, 0, 3), long(12, 12, 12), long(8, 8, 8), cache)
    with torch.no_grad():
        expected = model(tokens).logits_btv[:, 12:]
    torch.testing.assert_close(out.logits_bnv, expected, rtol=1e-5, atol=1e-5)


def test_overruns_are_named(model_of: Any, tokens_of: Any) -> None:
    model = model_of(num_nextn_predict_layers=0)
    cache = LatentCache(model.config, slots=2, context=16)
    with pytest.raises(CacheOverrun, match="16 positions"):
        model.extend(tokens_of(1, 4), long(0), long(13), long(4), cache)
    with pytest.raises(CacheOverrun, match="window 8"):
        model.extend(tokens_of(1, 4), long(0), long(8), long(4), cache, window=8)
    with pytest.raises(ModelError, match="no MTP head"):
        model.draft(torch.zeros(1, 1, 32), long(1)[None], long(0), long(0), cache)
