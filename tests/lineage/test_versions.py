"""RL's dev curve after its end: every point with exactly the weights of its step, or not at all."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
import torch
from tests.lineage.contexts import open_context

from etude.journal import read_journal
from etude.lineage import reinforce
from etude.lineage.context import RunContext
from etude.model import Numerics, Transformer, config_from_recipe, load_hf, round_with, save_hf, served_state
from etude.recipe import Recipe
from etude.recipe.model import ModelRecipe
from etude.recipe.precision import PrecisionRecipe
from etude.rl import evaluated_steps
from etude.weights import WeightStore
from etude.weights.torch_bridge import from_state_dict, into_module


@pytest.fixture(params=["float32", "bfloat16"])
def context(request: pytest.FixtureRequest, tmp_path: Path) -> RunContext:
    """Of a run whose four versions are published and differ."""
    recipe = Recipe.model_validate(
        {"name": "r", "compute": {"dtype": request.param, "threads": 1}, "rl": {"steps": 3, "evaluate_every": 1}}
    )
    found = open_context(tmp_path / "run", recipe)
    paths = found.paths
    network = Transformer(config_from_recipe(ModelRecipe(embedding_scale=11.3), 64)).initialise(0)
    paths.tokenizer.write_text("{}")
    save_hf(network, paths.model("sft"))
    network = network.to(found.compute().dtype)
    store = WeightStore(str(paths.weights))
    for version in range(4):
        store.publish(version, from_state_dict(network.state_dict()))
        with torch.no_grad():
            for weights in network.parameters():
                weights.mul_(1.25)
    return found


def test_a_version_is_evaluated_with_its_own_weights(context: RunContext, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []

    async def start_engine(context: RunContext, name: str, model: Path, version: int) -> None:
        network = load_hf(model, context.compute().dtype)
        published = load_hf(context.paths.model("sft"), context.compute().dtype)
        into_module(published, WeightStore(str(context.paths.weights)).read(version))
        assert version == 2
        for name, weights in published.state_dict().items():
            # Of 24 bits the last may go when the embedding's scale is folded in and out again.
            torch.testing.assert_close(network.state_dict()[name], weights, rtol=2e-7, atol=0)
        seen.append(model)
        raise KeyboardInterrupt

    monkeypatch.setattr(reinforce, "start_engine", start_engine)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(reinforce._evaluate_version(context, context.recipe.evaluation, 2))
    assert [model.exists() for model in seen] == [False], "of a checkpoint made for this nothing stays"


@pytest.mark.parametrize("experts", ["nvfp4", "fp8_block"])
def test_so_is_one_that_holds_codes(context: RunContext, experts: str, tmp_path: Path) -> None:
    """Its checkpoint has weights, which an engine rounds to these very codes again."""
    context.recipe = context.recipe.model_copy(update={"precision": PrecisionRecipe(experts=experts, emulate=True)})
    numerics, dtype = Numerics.of(context.recipe.precision), context.compute().dtype
    store = WeightStore(str(tmp_path / "codes"))
    network = load_hf(context.paths.model("sft"), dtype)
    with torch.no_grad():
        network.layers[1].mlp.experts.up_proj.mul_(1.25)
    round_with(network, numerics)
    store.publish(2, from_state_dict(served_state(network)))
    again = load_hf(reinforce._save_version(context, store, 2, tmp_path / "model"), dtype)
    round_with(again, numerics)
    state = from_state_dict(served_state(again))
    codes = {name: raw for name, raw in store.read(2).items() if name.endswith(".codes")}
    assert len(codes) == 3 * 4, "three layers and an MTP head"
    assert all(state[name].equals(raw) for name, raw in codes.items())


@pytest.mark.parametrize("harm", ["a byte is another", "it is gone"])
def test_a_version_that_cannot_be_had_is_left_out(
    context: RunContext, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    monkeypatch.setattr(reinforce, "start_engine", None)
    (folder,) = context.paths.weights.glob("v*2")
    if harm == "it is gone":
        shutil.rmtree(folder)
    else:
        for file in folder.iterdir():
            data = bytearray(file.read_bytes())
            data[len(data) // 2] ^= 1
            file.write_bytes(data)
    asyncio.run(reinforce._evaluate_version(context, context.recipe.evaluation, 2))
    (told,) = read_journal(context.paths.journal, kind="version_damaged")
    assert told.fields["version"] == 2


def test_the_points_of_a_curve() -> None:
    def points(**rl: int) -> list[int]:
        return evaluated_steps(Recipe.model_validate({"name": "r", "rl": rl}).rl)

    assert points(steps=5, evaluate_every=2) == [0, 2, 4, 5]
    assert points(steps=4, evaluate_every=2) == [0, 2, 4]
    assert points(steps=4, evaluate_every=9) == [0, 4]
    assert points(steps=0, evaluate_every=2) == [0]
    assert points(steps=4, evaluate_every=0) == []


def test_whoever_is_killed_in_an_evaluation_does_not_learn_again(
    context: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    rl = context.recipe.rl.model_copy(update={"evaluate_after": True})
    context.recipe = context.recipe.model_copy(update={"rl": rl})
    learnt: list[int] = []
    evaluated: list[int] = []

    async def learn(context: RunContext, on_dev: object) -> dict[str, int]:
        learnt.append(1)
        return {"steps": 3, "of_life": len(learnt)}

    async def evaluate_version(context: RunContext, on_dev: object, step: int) -> None:
        if step == 2 and step not in evaluated:
            evaluated.append(step)
            raise KeyboardInterrupt
        evaluated.append(step)

    monkeypatch.setattr(reinforce, "_learn", learn)
    monkeypatch.setattr(reinforce, "_evaluate_version", evaluate_version)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(reinforce.run_rl(context))
    assert asyncio.run(reinforce.run_rl(context)) == {"steps": 3, "of_life": 1}
    assert evaluated == [0, 1, 2, 0, 1, 2, 3]
