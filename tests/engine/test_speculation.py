"""Rejection sampling is exact: tokens, and pairs of tokens, have the main head's distribution whatever the draft's."""

import numpy as np
import pytest
import torch

from etude.engine.builtin.speculation import propose, verify

ROWS, VOCAB = 60_000, 6


def distributions(seed):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(3, VOCAB, generator=generator) * 1.5).unbind(0)


def speculate(draft_logits, main_logits, ahead_logits, temperature=1.0, there=True, top_p=1.0):
    seeds, positions = np.arange(ROWS, dtype=np.uint64), np.full(ROWS, 9)
    temperatures = torch.full((ROWS,), temperature)
    draft = propose(draft_logits.repeat(ROWS, 1), temperatures, seeds, positions)
    draft.valid_b &= there
    logits = torch.stack((main_logits, ahead_logits)).repeat(ROWS, 1, 1)
    return draft, verify(logits, draft, temperatures, seeds, positions, torch.full((ROWS,), top_p))


def chi_square(counts, probabilities):
    expected = probabilities * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_first_token_is_distributed_as_without_a_draft(seed, temperature):
    q, p, ahead = distributions(seed)
    draft, verified = speculate(q, p, ahead, temperature)
    expected = (p / temperature).softmax(-1)
    assert chi_square(torch.bincount(verified.tokens_b2[:, 0], minlength=VOCAB), expected) < 24  # 5 degrees: p = 0.0002
    overlap = torch.minimum(expected, (q / temperature).softmax(-1)).sum()
    assert abs(float(verified.accepted_b.float().mean() - overlap)) < 0.01, "no exact scheme accepts more often"
    assert bool((verified.tokens_b2[verified.accepted_b, 0] == draft.tokens_b[verified.accepted_b]).all())


@pytest.mark.parametrize("top_p", [0.4, 0.8])
def test_the_most_probable_tokens_alone(top_p):
    q, p, ahead = distributions(2)
    _, verified = speculate(q, p, ahead, top_p=top_p)
    for column, logits in ((0, p), (1, ahead)):
        shares, order = logits.softmax(-1).sort(descending=True)
        kept = order[: int((shares.cumsum(-1) < top_p).sum()) + 1]
        tokens = verified.tokens_b2[verified.accepted_b, column] if column else verified.tokens_b2[:, column]
        counts = torch.bincount(tokens, minlength=VOCAB)
        assert counts.sum() == counts[kept].sum()
        expected = logits.softmax(-1)[kept]
        assert chi_square(counts[kept], expected / expected.sum()) < 24


@pytest.mark.parametrize("seed", range(3))
def test_the_token_after_an_accepted_draft_is_independent_of_it(seed):
    q, p, ahead = distributions(seed)
    _, verified = speculate(q, p, ahead)
    pairs = verified.tokens_b2[verified.accepted_b]
    counts = torch.bincount(pairs[:, 0] * VOCAB + pairs[:, 1], minlength=VOCAB * VOCAB)
    first = torch.minimum(p.softmax(-1), q.softmax(-1))
    expected = (first / first.sum())[:, None] * ahead.softmax(-1)
    assert chi_square(counts, expected.flatten()) < 75  # 35 degrees: p = 0.0001


def test_greedy_accepts_exactly_the_most_probable_token():
    q, p, ahead = distributions(1)
    for draft_logits in (q, p):
        draft, verified = speculate(draft_logits, p, ahead, temperature=0.0)
        assert bool((verified.tokens_b2[:, 0] == p.argmax()).all())
        assert bool((verified.accepted_b == (draft.tokens_b == p.argmax())).all())
    assert bool((verified.tokens_b2[:, 1] == ahead.argmax()).all())


def test_a_draft_head_out_of_order_proposes_nothing_and_a_network_out_of_order_is_seen():
    q, p, ahead = distributions(0)
    draft, verified = speculate(torch.full_like(q, float("nan")), p, ahead)
    assert not bool(draft.valid_b.any())
    assert bool(verified.finite_b.all())
    assert chi_square(torch.bincount(verified.tokens_b2[:, 0], minlength=VOCAB), p.softmax(-1)) < 24
    assert not bool(speculate(q, torch.full_like(p, float("nan")), ahead)[1].finite_b.any())
