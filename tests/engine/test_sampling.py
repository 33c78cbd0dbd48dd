import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from etude.engine.builtin import sampling
from etude.engine.builtin.sampling import Stream, draw, uniforms
from etude.engine.builtin.speculation import propose, verify

ROWS = 40_000
REAL_VOCABULARY = 151_936
STEPS = 2**24
"""Number of uniform numbers that there are."""


def seeds(count):
    return np.arange(count, dtype=np.uint64)


def test_uniforms_are_uniform_and_independent_of_their_neighbours():
    first = uniforms(seeds(ROWS), np.full(ROWS, 5), Stream.TOKEN)
    assert 0 < float(first.min()) <= float(first.max()) < 1
    counts = torch.histc(first, bins=50, min=0, max=1)
    expected = ROWS / 50
    assert float(((counts - expected) ** 2 / expected).sum()) < 90  # chi-square, 49 degrees: p = 0.0003
    others = [
        uniforms(seeds(ROWS), np.full(ROWS, 6), Stream.TOKEN),
        uniforms(seeds(ROWS), np.full(ROWS, 5), Stream.DRAFT),
        uniforms(seeds(ROWS), np.full(ROWS, 5), Stream.ACCEPT),
        first.roll(1),
    ]
    for other in others:
        assert abs(float(torch.corrcoef(torch.stack((first, other)))[0, 1])) < 0.02


def test_the_ends_of_the_unit_interval_stay_among_tokens_with_weight():
    weights = torch.tensor([[0.0, 1e-30, 0.7, 0.3, 1e-12, 0.0]]).repeat(2, 1)
    assert draw(weights, torch.tensor([1 - 2.0**-24, 2.0**-24])).tolist() in ([3, 2], [4, 2])


weights = st.integers(1, 700).flatmap(
    lambda vocab: arrays(np.int64, (3, vocab), elements=st.sampled_from([0, 0, 1, 2, 1000]))
)


@settings(max_examples=300, deadline=None)
@given(
    weights=weights, numbers=st.lists(st.integers(0, STEPS // 2 - 1), min_size=3, max_size=3), by_doubling=st.booleans()
)
def test_the_token_is_where_the_exact_cumulative_distribution_passes_the_number(weights, numbers, by_doubling):
    weights[:, -1] += weights.sum(1) == 0
    odd = 2 * np.array(numbers) + 1
    cumulated = weights.cumsum(1)
    expected = (cumulated * STEPS <= (odd * cumulated[:, -1])[:, None]).sum(1)  # in integers
    with pytest.MonkeyPatch.context() as patch:
        if by_doubling:
            patch.setattr(sampling, "_cumulated", sampling._cumulated_by_doubling)
        found = draw(torch.from_numpy(weights).to(torch.float32), torch.from_numpy(odd / STEPS).to(torch.float32))
    assert found.tolist() == expected.tolist()


def test_a_real_vocabulary_is_drawn_from_in_proportion_and_without_a_tensor_of_its_size():
    generator = torch.Generator().manual_seed(3)
    row = torch.randn(REAL_VOCABULARY, generator=generator).mul(2).exp()
    probabilities = row.double() / row.double().sum()
    numbers = uniforms(seeds(20_000), np.full(20_000, 7), Stream.TOKEN)
    found = torch.cat([draw(row.expand(len(part), -1), part) for part in numbers.split(500)])
    cumulated = probabilities.cumsum(0)
    above, below = cumulated[found], cumulated[found] - probabilities[found]
    assert float(torch.maximum(below - numbers, numbers - above).max()) < 1e-6, "in the token's share of the exact sum"
    band = torch.arange(REAL_VOCABULARY) * 50 // REAL_VOCABULARY
    counts, expected = band[found].bincount(minlength=50), 20_000 * band.bincount(probabilities)
    assert float(((counts - expected) ** 2 / expected).sum()) < 90  # chi-square, 49 degrees: p = 0.0003
    with torch.profiler.profile(profile_memory=True) as profile:
        draw(row.expand(8, -1), numbers[:8])
    assert max(event.cpu_memory_usage for event in profile.events()) < 8 * REAL_VOCABULARY, "bytes"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_draws_the_same_tokens_and_hands_them_over_in_one_copy():
    logits = torch.randn(64, 2, REAL_VOCABULARY, generator=torch.Generator().manual_seed(4)) * 2
    temperatures, positions = torch.full((64,), 0.7), np.full(64, 9)
    temperatures[:3] = 0
    torch.use_deterministic_algorithms(True)
    try:
        made = []
        for device in ("cpu", "cuda"):
            draft = propose(logits[:, 1].to(device, copy=True), temperatures, seeds(64), positions)
            made.append(verify(logits.to(device, copy=True), draft, temperatures, seeds(64), positions).on_host())
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(made[0].tokens_b2, made[1].tokens_b2)
    assert torch.equal(made[0].accepted_b, made[1].accepted_b)
    assert torch.allclose(made[0].logprobs_b2, made[1].logprobs_b2, atol=1e-5)
