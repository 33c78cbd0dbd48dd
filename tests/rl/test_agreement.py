"""Trainer against engine: the three ways agree where nothing is rounded, and disagreement is seen."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.tiny import VOCAB, tiny_model

from etude.engine.builtin import BuiltinEngine
from etude.model import Transformer, serve
from etude.model.drift import Magnitudes, record_pass
from etude.recipe.acting import EngineRecipe
from etude.rl.agreement import Agreement, Scored, after, agreement, fed, sampled, trained
from etude.rl.measure import k3

SEQUENCES = [
    torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(length)) for length in (9, 30, 17)
]


def scored(model: Transformer, sequences: list[torch.Tensor]) -> list[Scored]:
    return [trained(record_pass(model, tokens), tokens) for tokens in sequences]


@pytest.mark.parametrize("chunk", [1, 4, 64])
def test_in_fp32_the_engines_network_says_what_the_trainer_says(chunk: int) -> None:
    model = tiny_model()
    ours = scored(model, SEQUENCES)
    serve(model)
    found = agreement(ours, fed(model, SEQUENCES, chunk))
    assert found.tokens == sum(len(tokens) - 1 for tokens in SEQUENCES)
    assert 0 < found.logprobs.max < 1e-4
    assert abs(found.k3) < 1e-7
    assert found.flips == [0.0, 0.0]


@given(seed=st.integers(0, 2**31), tokens=st.integers(1, 40))
def test_equal_streams_agree_and_flips_are_shares(seed: int, tokens: int) -> None:
    made = torch.Generator().manual_seed(seed)
    one, other = (
        Scored(
            -torch.rand(tokens, generator=made),
            torch.stack([torch.randperm(5, generator=made)[:2] for _ in range(3 * tokens)]).view(tokens, 3, 2),
        )
        for _ in range(2)
    )
    assert agreement([one], [one]) == Agreement(tokens, Magnitudes(0, 0, 0), 0, [0, 0, 0])
    found = agreement([one, other], [other, one])
    assert found.tokens == 2 * tokens
    assert found.k3 > 0
    assert found.logprobs.max == pytest.approx(float((one.logprobs_t - other.logprobs_t).abs().max()))
    assert len(found.flips) == 3
    assert all(0 <= share <= 1 for share in found.flips)


def test_log_probs_are_those_of_the_next_token() -> None:
    model, tokens = tiny_model(), SEQUENCES[1]
    (ours,) = scored(model, [tokens])
    with torch.no_grad():
        logits = model(tokens[None]).logits_btv[0].log_softmax(-1)
    assert torch.allclose(ours.logprobs_t, logits[range(len(tokens) - 1), tokens[1:]], atol=1e-5)


def test_what_the_engine_samples_the_trainer_scores_alike() -> None:
    model = tiny_model()
    engine = BuiltinEngine(tiny_model(), EngineRecipe(slots=2, context=48))
    made = sampled(engine, SEQUENCES, 12)
    assert [len(tokens) for tokens, _ in made] == [len(prompt) + 12 for prompt in SEQUENCES]
    ours = [after(one, len(p)) for one, p in zip(scored(model, [t for t, _ in made]), SEQUENCES, strict=True)]
    found = agreement(ours, [said for _, said in made])
    assert found.tokens == 36
    assert found.logprobs.max < 1e-4
    assert found.flips == [0.0, 0.0]


def test_other_weights_do_not_agree() -> None:
    other = tiny_model(1)
    serve(other)
    found = agreement(scored(tiny_model(0), SEQUENCES), fed(other, SEQUENCES, 8))
    assert found.logprobs.mean > 0.1
    assert found.k3 > 0.01
    assert min(found.flips) > 0.1


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=50))
def test_k3_is_no_less_than_nothing(values: list[float]) -> None:
    delta = torch.tensor(values)
    assert k3(delta) >= -1e-15
    assert k3(delta) == pytest.approx(float(np.mean([math.expm1(value) - value for value in delta.tolist()])))
    assert k3(torch.zeros_like(delta)) == 0
