"""An invariant engine: a request's answer is that of the request alone, and its log-probs are the trainer's by bits."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.tiny import VOCAB, tiny_model

from etude.engine.builtin import BuiltinEngine
from etude.engine.builtin.sampling import Tempered, logprobs
from etude.engine.protocol import GenerateRequest, Generation, Sampling
from etude.model import Transformer, compute_with
from etude.recipe.acting import EngineRecipe
from etude.recipe.precision import PrecisionRecipe

CONTEXT = 128


def network(dtype: torch.dtype, *, invariant: bool = True, experts: str = "bf16") -> Transformer:
    model = tiny_model(2, moe_intermediate_size=32).to(dtype)
    compute_with(model, PrecisionRecipe(experts=experts, emulate=True, invariant=invariant))
    return model


def engine_of(model: Transformer, speculate: str, slots: int = 5) -> BuiltinEngine:
    return BuiltinEngine(model, EngineRecipe(slots=slots, context=CONTEXT, speculate=speculate))


def conversations(seed: int, count: int) -> list[list[GenerateRequest]]:
    """Two turns each, in groups that begin alike; the second turn goes on behind the first's prompt."""
    made = np.random.default_rng(seed)
    starts = [made.integers(0, VOCAB, n).astype(np.int32) for n in made.integers(1, 50, 2)]
    turns: list[list[GenerateRequest]] = [[], []]
    for number in range(count):
        prompt = starts[number % 2]
        for turn in turns:
            prompt = np.concatenate((prompt, made.integers(0, VOCAB, int(made.integers(1, 12))).astype(np.int32)))
            sampling = Sampling(int(made.integers(1, 20)), (), temperature=float(made.choice([0.7, 1.0])), seed=number)
            turn.append(GenerateRequest(f"{len(turn)}-{prompt.size}", prompt, sampling, f"c{number}"))
    return turns


def sampled(engine: BuiltinEngine, turns: list[list[GenerateRequest]]) -> list[Generation]:
    done: dict[str, Generation] = {}
    for turn in turns:
        for request in turn:
            engine.submit(request)
        while engine.busy:
            for answer in engine.step():
                assert isinstance(answer, Generation), answer
                done[answer.id] = answer
    return [done[request.id] for turn in turns for request in turn]


def by_the_trainer(model: Transformer, request: GenerateRequest, generation: Generation) -> np.ndarray:
    """Log-probs of what was sampled, under the trainer's logits of the whole sequence, by the sampler's formula."""
    tokens = torch.from_numpy(np.concatenate((request.prompt, generation.tokens)).astype(np.int64))
    begin = len(request.prompt)
    with torch.no_grad():
        logits = model(tokens[None]).logits_btv[0, begin - 1 : -1].clone()
    tempered = Tempered.of(logits, torch.full((len(logits),), request.sampling.temperature))
    return logprobs(tempered.weights_bv, tempered.totals(), tokens[begin:]).numpy()


def agreeing(model: Transformer, engine: BuiltinEngine, turns: list[list[GenerateRequest]]) -> list[bool]:
    asked = [request for turn in turns for request in turn]
    return [
        np.array_equal(by_the_trainer(model, request, generation), generation.logprobs)
        for request, generation in zip(asked, sampled(engine, turns), strict=True)
    ]


@cache
def trainers_and_engines(dtype: torch.dtype) -> tuple[Transformer, Transformer]:
    return network(dtype), network(dtype)


@pytest.mark.parametrize(("dtype", "speculate"), [(torch.float32, "always"), (torch.bfloat16, "never")], ids=str)
@given(seed=st.integers(0, 1 << 20), count=st.integers(1, 8))
@settings(max_examples=3)
def test_log_probs_are_the_trainers_by_bits(dtype: torch.dtype, speculate: str, seed: int, count: int) -> None:
    """Through batches that change with every step, prefixes that are taken over, drafts that hold and that do not."""
    model, served = trainers_and_engines(dtype)
    assert all(agreeing(model, engine_of(served, speculate), conversations(seed, count)))


@pytest.mark.parametrize("experts", ["nvfp4", "mxfp8", "fp8_block"])
def test_rounded_experts_too(experts: str) -> None:
    """In bfloat16, with drafts."""
    model, served = (network(torch.bfloat16, experts=experts) for _ in range(2))
    assert all(agreeing(model, engine_of(served, "always"), conversations(0, 5)))


def test_otherwise_they_are_not() -> None:
    model, served = (network(torch.bfloat16, invariant=False) for _ in range(2))
    assert not all(agreeing(model, engine_of(served, "never"), conversations(0, 6)))
