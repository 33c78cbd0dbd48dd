"""The engine rounds as the trainer does, in every precision, whichever way its weights came."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.engine.tiny import VOCAB, tiny_model

from etude.engine.builtin import BuiltinEngine
from etude.engine.builtin.service import EngineService
from etude.engine.protocol import GenerateRequest, Generation, Sampling, UpdateRefused
from etude.model import Numerics, Transformer, round_with, save_hf, served_state
from etude.recipe.acting import EngineRecipe
from etude.recipe.precision import PrecisionRecipe
from etude.weights import WeightStore
from etude.weights.torch_bridge import from_state_dict

WIDTH = {"moe_intermediate_size": 32}
RECIPE = EngineRecipe(slots=4, context=64)
PER_ROW = ["nvfp4", "mxfp8", "fp8_block"]


def rounded(experts: str, seed: int = 0) -> Transformer:
    model = tiny_model(seed, **WIDTH)
    round_with(model, Numerics.of(PrecisionRecipe(experts=experts, emulate=True)))
    return model


def requests(count: int = 4) -> list[GenerateRequest]:
    made = np.random.default_rng(0)
    prompts = [made.integers(0, VOCAB, 5 + 3 * n).astype(np.int32) for n in range(count)]
    return [GenerateRequest(str(n), prompt, Sampling(12, (), seed=n)) for n, prompt in enumerate(prompts)]


def mismatch(model: Transformer, request: GenerateRequest, generation: Generation) -> float:
    """The largest difference to the trainer's log-probs."""
    tokens = torch.from_numpy(np.concatenate((request.prompt, generation.tokens)).astype(np.int64))
    with torch.no_grad():
        logps = model(tokens[None]).logits_btv[0].log_softmax(-1)
    begin = len(request.prompt)
    ours = logps[begin - 1 : -1].gather(1, tokens[begin:, None]).squeeze(1)
    return float(np.abs(ours.numpy() - generation.logprobs).max())


def sampled(engine: BuiltinEngine, asked: list[GenerateRequest]) -> list[Generation]:
    for request in asked:
        engine.submit(request)
    done: dict[str, Generation] = {}
    while len(done) < len(asked):
        for answer in engine.step():
            assert isinstance(answer, Generation), answer
            done[answer.id] = answer
    return [done[request.id] for request in asked]


@pytest.mark.parametrize("speculate", ["never", "always"])
@pytest.mark.parametrize("experts", PER_ROW)
def test_log_probs_are_the_trainers_before_and_after_a_swap(experts: str, speculate: str) -> None:
    recipe = RECIPE.model_copy(update={"speculate": speculate})
    engine = BuiltinEngine(rounded(experts), recipe)
    for version, delta in ((0, False), (1, True)):
        trainer = rounded(experts, version)
        if version:
            engine.swap(version, from_state_dict(served_state(trainer)), delta=delta)
        asked = requests()
        found = [mismatch(trainer, r, g) for r, g in zip(asked, sampled(engine, asked), strict=True)]
        # One number beside a tie may go another way; it moves few log-probs, and not by much.
        assert float(np.median(found)) < 1e-4
        assert max(found) < 0.1


def test_a_plain_version_does_not_fit_a_rounded_engine() -> None:
    engine = BuiltinEngine(rounded("mxfp8"), RECIPE)
    with pytest.raises(UpdateRefused, match="names differ"):
        engine.swap(1, from_state_dict(tiny_model(1, **WIDTH).state_dict()), delta=False)


def test_the_service_takes_the_recipes_precision(tmp_path: Path) -> None:
    """It begins with the weights of a folder, then with a store's codes, and follows deltas of them."""
    precision = PrecisionRecipe(experts="nvfp4", emulate=True)
    save_hf(tiny_model(0, **WIDTH), tmp_path / "model")
    store = WeightStore(tmp_path / "weights")
    versions = [from_state_dict(served_state(rounded("nvfp4", seed))) for seed in range(3)]
    store.publish(0, versions[0])
    store.publish(1, versions[1], base=(0, versions[0]))

    async def generate() -> list[Generation]:
        service = EngineService(
            tmp_path / "model", RECIPE, "float32", 1, str(tmp_path / "weights"), precision=precision.model_dump()
        )
        first = await service.generate(requests(1)[0])
        store.publish(2, versions[2], base=(1, versions[1]))
        await service.update(2)
        second = await service.generate(requests(1)[0])
        await service.shutdown()
        return [first, second]

    for seed, generation in enumerate(asyncio.run(generate()), 1):
        assert set(generation.versions) == {seed}
        assert mismatch(rounded("nvfp4", seed), requests(1)[0], generation) < 1e-4
