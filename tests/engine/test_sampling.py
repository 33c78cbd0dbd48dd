import numpy as np
import torch

from etude.engine.builtin.sampling import Stream, draw, uniforms

ROWS = 40_000


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
