"""The engine on a GPU samples what it samples on a CPU, and waits for the GPU a fixed number of times a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.contract.engine import EngineContract
from tests.engine.test_contract import case_of, settings
from tests.engine.tiny import VOCAB, Versions, tiny_model
from tests.needs import on_gpu

from etude.engine.builtin import BuiltinEngine
from etude.engine.builtin.service import EngineService
from etude.engine.protocol import GenerateRequest, Generation, Sampling
from etude.model import Transformer
from etude.recipe.acting import EngineRecipe

REQUESTS = 7


def answers(model: Transformer, speculate: str, rests_every: int = 0) -> tuple[dict[str, Generation], int]:
    """Answers to greedy and other requests, some of which continue earlier ones, and the number of steps."""
    engine = BuiltinEngine(model, EngineRecipe(slots=4, context=64, speculate=speculate, cache_slots=4))
    numbers = np.random.default_rng(0)
    base = numbers.integers(0, VOCAB, 50).astype(np.int32)
    for name in range(REQUESTS):
        sampling = Sampling(8, (), seed=name, temperature=(0.0, 1.0, 0.7)[name % 3])
        engine.submit(GenerateRequest(str(name), base[: 3 + 5 * name], sampling))
    done: dict[str, Generation] = {}
    while len(done) < REQUESTS:
        if rests_every and engine.counters.decode_steps % rests_every == 0:
            engine.rest()
            assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
            assert engine._cache.entries.is_cpu
            assert (engine.busy, engine.step()) == (False, [])
            engine.wake()
        for answer in engine.step():
            assert isinstance(answer, Generation), answer
            done[answer.id] = answer
    return done, engine.counters.decode_steps


@pytest.mark.parametrize(("speculate", "waits_per_step"), [("never", 2), ("always", 6)])
def test_it_samples_as_on_a_cpu(with_cuda: Any, speculate: str, waits_per_step: int) -> None:
    shape = {"num_nextn_predict_layers": 1}
    expected, _ = answers(tiny_model(**shape), speculate)
    with with_cuda() as waits:
        model = tiny_model(**shape).to("cuda")
        waits.clear()
        found, steps = answers(model, speculate)
    assert sum(waits.values()) <= waits_per_step * steps
    for name, answer in expected.items():
        assert found[name].tokens.tolist() == answer.tokens.tolist(), name
        np.testing.assert_allclose(found[name].logprobs, answer.logprobs, atol=1e-4)
        np.testing.assert_array_equal(found[name].experts, answer.experts)


@pytest.mark.parametrize("speculate", ["never", "always"])
def test_rests_change_no_answer(with_cuda: Any, speculate: str) -> None:
    with with_cuda():
        expected, _ = answers(tiny_model(num_nextn_predict_layers=1).to("cuda"), speculate)
        found, _ = answers(tiny_model(num_nextn_predict_layers=1).to("cuda"), speculate, rests_every=5)
    for name, answer in expected.items():
        assert found[name].tokens.tolist() == answer.tokens.tolist(), name


@on_gpu
class TestOnCuda(EngineContract):
    @pytest.fixture
    def case(self, tmp_path):
        versions = Versions(tmp_path)

        async def make():
            store = str(versions.location)
            return EngineService(versions.folder, settings("always"), "float32", 1, store, device="cuda")

        return case_of(versions, make)
