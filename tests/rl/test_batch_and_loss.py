from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.model import Head
from etude.rl.batch import Row, microbatches, trace_rows
from etude.rl.forward import SampledTokens
from etude.rl.loss import policy_loss
from etude.rl.trust import ByDifference, ByRatio, TrustRegion
from etude.trace.trace import UNKNOWN_EXPERT, Break, BreakKind, Segment, SegmentKind, Trace


def segment(tokens: list[int], sampled: list[bool], experts: bool = True) -> Segment:
    n = len(tokens)
    mark = np.array(sampled)
    return Segment(
        0,
        None,
        SegmentKind.START,
        np.array(tokens, np.int32),
        mark,
        np.where(mark, -0.5, 0).astype(np.float32),
        np.where(mark, 3, -1).astype(np.int32),
        np.arange(n * 4, dtype=np.uint16).reshape(n, 2, 2) if experts else None,
    )


def row(length: int, advantage: float, seed: int) -> Row:
    rng = np.random.default_rng(seed)
    sampled = rng.random(length) < 0.5
    sampled[-1] = True
    return Row(
        rng.integers(0, 11, length, dtype=np.int32),
        sampled,
        -rng.random(length).astype(np.float32),
        np.zeros(length, np.int32),
        rng.integers(0, 4, (length, 2, 2)).astype(np.uint16),
        advantage,
    )


def test_rows_are_the_segments_cut_after_their_last_sampled_token() -> None:
    trace = Trace("t", "task", "train", "g", 0, "p", 0)
    trace.segments = [
        segment([1, 2, 3, 4, 5], [False, False, True, True, False]),
        segment([1, 2], [False, False]),
        segment([7, 8], [False, True]),
        replace(segment([9, 9], [False, True]), kind=SegmentKind.ASIDE),
        replace(segment([6, 6], [False, True]), kind=SegmentKind.AGENT, breaks=(Break(BreakKind.EDITED, 0),)),
    ]
    rows = trace_rows(trace, 0.25)
    assert [list(r.tokens) for r in rows] == [[1, 2, 3, 4], [7, 8], [6, 6]]
    assert {r.advantage for r in rows} == {0.25}
    assert rows[0].experts is not None
    assert rows[0].experts.shape == (4, 2, 2)


@settings(deadline=None)
@given(lengths=st.lists(st.integers(2, 30), min_size=1, max_size=20), budget=st.integers(10, 100))
def test_microbatches_hold_every_row_once_within_the_budget(lengths: list[int], budget: int) -> None:
    rows = [row(length, float(i), i) for i, length in enumerate(lengths)]
    batches = microbatches(rows, budget)
    assert sorted(index for batch in batches for index in batch.rows) == list(range(len(rows)))
    for batch in batches:
        assert batch.tokens_bt.size <= budget or len(batch.rows) == 1
        for place, index in enumerate(batch.rows):
            source = rows[index]
            n = len(source.tokens)
            assert (batch.tokens_bt[place, :n] == source.tokens).all()
            assert (batch.mask_bt[place, 1:n] == source.sampled[1:]).all()
            assert not batch.mask_bt[place, n:].any()
            assert not batch.mask_bt[place, 0]
            assert batch.experts_btlk is not None
            assert (batch.experts_btlk[place, n:] == UNKNOWN_EXPERT).all()


@pytest.mark.parametrize("trust", [ByRatio(0.7, 1.4), ByDifference(0.1, 0.3)], ids=["ratio", "difference"])
def test_loss_and_gradient_match_a_token_by_token_reference(trust: TrustRegion) -> None:
    torch.manual_seed(0)
    batch = microbatches([row(9, 0.7, 1), row(7, -0.4, 2)], 10_000)[0]
    logits = torch.randn(2, 9, 11, requires_grad=True)
    parts = policy_loss(
        logits[:, :-1][torch.from_numpy(batch.mask_bt)[:, 1:]],
        Head(torch.eye(11)),
        SampledTokens.of(batch, logits.device),
        temperature=0.8,
        ratio_cap=1.5,
        trust=trust,
        constant=50.0,
    )
    parts.loss.backward()
    got = logits.grad.clone()

    again = logits.detach().clone().requires_grad_()
    total = torch.zeros(())
    capped = clipped = 0
    for b in range(2):
        for t in range(1, 9):
            if not batch.mask_bt[b, t]:
                continue
            logp = torch.log_softmax(again[b, t - 1] / 0.8, 0)[int(batch.tokens_bt[b, t])]
            engine = math.exp(float(batch.logprobs_bt[b, t]))
            ratio = math.exp(float(logp.detach())) / engine
            capped += ratio > 1.5
            advantage = float(batch.advantages_b[b])
            if isinstance(trust, ByRatio):
                left = ratio > 1.4 if advantage > 0 else ratio < 0.7
            else:
                left = ratio * engine > engine + 0.3 if advantage > 0 else ratio * engine < engine - 0.1
            if left:
                clipped += 1
                continue
            total = total - min(ratio, 1.5) * advantage * logp / 50.0
    total.backward()
    torch.testing.assert_close(parts.loss, total)
    torch.testing.assert_close(got, again.grad)
    assert int(parts.capped.sum()) == capped
    assert int(parts.clipped.sum()) == clipped > 0


@pytest.mark.parametrize(
    ("engine", "trainer", "advantage", "left_by_ratio", "left_by_difference"),
    [
        (0.50, 0.25, -1.0, True, True),
        (0.50, 0.25, +1.0, False, False),
        (0.25, 0.50, +1.0, True, True),
        (0.25, 0.50, -1.0, False, False),
        (0.01, 0.04, +1.0, True, False),  # a rare token: by difference it may grow at once
        (0.02, 0.01, -1.0, True, False),
        (0.76, 0.97, +1.0, False, True),  # a frequent one: by ratio it may go all the way
        (0.99, 0.80, -1.0, False, True),
    ],
)
def test_a_token_that_left_the_trust_region_is_pushed_no_further_but_may_come_back(
    engine: float, trainer: float, advantage: float, left_by_ratio: bool, left_by_difference: bool
) -> None:
    for trust, left in ((ByRatio(0.8, 1.28), left_by_ratio), (ByDifference(0.18, 0.2), left_by_difference)):
        logits = torch.tensor([[math.log(1 - trainer), math.log(trainer)]], requires_grad=True)
        first, second = torch.tensor([0]), torch.tensor([1])
        sampled = SampledTokens(first, second, torch.tensor([math.log(engine)]), torch.tensor([advantage]))
        parts = policy_loss(
            logits, Head(torch.eye(2)), sampled,
            temperature=1.0, ratio_cap=3.0, trust=trust, constant=1.0,
        )  # fmt: skip
        parts.loss.backward()
        assert bool(parts.clipped.all()) is left
        assert bool(logits.grad.abs().sum() > 0) is not left
