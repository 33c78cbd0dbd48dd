"""RL of adapters: they alone change, are published, checkpointed and swapped; the first ones are the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rl.make import make_groups, open_trainer, sample, tiny_model, tiny_recipe
from torch import Tensor

from etude.engine.builtin import BuiltinEngine
from etude.engine.builtin.service import EngineService
from etude.engine.protocol import UpdateRefused
from etude.journal import RunPaths
from etude.model import adapter_state, adapters_of, begin_adapters, load_hf, save_hf, served_state
from etude.recipe import Recipe
from etude.rl.measure import reference_kl
from etude.rl.trainer import RlTrainer
from etude.training.checkpoint import latest_checkpoint, load_checkpoint
from etude.weights import WeightStore
from etude.weights.torch_bridge import from_state_dict, to_torch

EVERY = ["attention", "mlp", "experts", "shared"]


def lora_recipe(**rl: object) -> Recipe:
    plain = tiny_recipe(**rl).model_dump(by_alias=True) | {
        "model": {"from": "base"},
        "stages": ["rl"],
        "lora": {"rank": 3, "alpha": 6.0, "targets": EVERY},
    }
    return Recipe.model_validate(plain)


RECIPE = lora_recipe(probe_every=1)


def begun(root: Path, recipe: Recipe = RECIPE, dtype: str = "float32") -> RlTrainer:
    paths = RunPaths(root)
    if not paths.model("base").exists():
        save_hf(tiny_model(tiny_recipe()), paths.model("base"))
        (root / "tokenizer.json").write_text("{}")
    return open_trainer(root, recipe, dtype)


@pytest.fixture(autouse=True)
def _no_other_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.rl.make.save_hf", lambda *args: None)


def stage_of(trainer: RlTrainer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def test_a_step_moves_adapters_and_nothing_else(tmp_path: Path) -> None:
    trainer = begun(tmp_path, dtype="bfloat16")
    before, kinds = stage_of(trainer), set(adapter_state(trainer.model))
    for step in range(2):  # a fresh A has no gradient, since its B is zero
        trainer.train(step, make_groups(RECIPE, trainer.model, step))
    after = stage_of(trainer)
    assert {name for name in before if not torch.equal(before[name], after[name])} == kinds
    assert any(name.startswith("mtp.") for name in kinds), "heads follow the trunk"
    store = WeightStore(str(tmp_path / "weights"))
    assert store.versions() == [0, 1, 2]
    assert store.read(2).keys() == kinds
    assert all(torch.equal(to_torch(raw), after[name]) for name, raw in store.read(2).items())
    state = load_checkpoint(latest_checkpoint(trainer.paths.checkpoints("rl"))[1])
    assert state["buffers"] == {}
    assert state["optimizer"]["masters"].keys() == state["optimizer"]["moments"].keys() == kinds
    again = begun(tmp_path, dtype="bfloat16")
    assert again.step == 2
    assert all(torch.equal(tensor, after[name]) for name, tensor in again.model.state_dict().items())
    trainer.export()
    folder = trainer.paths.model("rl")
    assert {file.name for file in folder.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "tokenizer.json",
    }
    masters = trainer.optimizer.masters.masters
    assert all(torch.equal(tensor, masters[name]) for name, tensor in adapter_state(load_hf(folder)).items())


def test_checkpointed_layers_train_adapters_and_heads_to_the_same_bits(tmp_path: Path) -> None:
    plain = RECIPE.model_dump(by_alias=True)
    ends: list[dict[str, Tensor]] = []
    for how in ("none", "blocks"):
        plain["compute"]["checkpoint_activations"] = how
        trainer = begun(tmp_path / how, Recipe.model_validate(plain))
        assert {module.checkpointed for module in trainer.model.layers} == {how == "blocks"}
        for step in range(2):
            trainer.train(step, make_groups(RECIPE, trainer.model, step))
        ends.append(stage_of(trainer))
    assert [name for name in ends[0] if not torch.equal(ends[0][name], ends[1][name])] == []


def test_an_engine_on_the_base_takes_every_version(tmp_path: Path) -> None:
    trainer = begun(tmp_path)
    for step in range(2):
        metrics = trainer.train(step, make_groups(RECIPE, trainer.model, step))
    assert metrics["mismatch_p99"] < 1e-4, "the engine computes with the adapters as the trainer does"
    assert metrics["p99_off"] < 1e-4, "what is probed has the adapters of the version that sampled"
    store, folder = WeightStore(str(tmp_path / "weights")), trainer.paths.model("base")
    served = begin_adapters(load_hf(folder), RECIPE.lora)
    engine = BuiltinEngine(served, RECIPE.engine)
    engine.swap(2, store.read(2), delta=True)
    (expected,), _ = sample(RECIPE, trainer.model, 1)
    (found,), _ = sample(RECIPE, served, 1)
    assert found.tokens.tolist() == expected.tokens.tolist()
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
    assert all(torch.equal(tensor, stage_of(trainer)[name]) for name, tensor in adapter_state(served).items())
    with pytest.raises(UpdateRefused, match="does not fit the engine's model"):
        engine.swap(3, from_state_dict(load_hf(folder).state_dict()), delta=False)
    lora: dict[str, Any] = RECIPE.lora.model_dump()
    EngineService(folder, RECIPE.engine, store=str(tmp_path / "weights"), lora=lora)
    with pytest.raises(UpdateRefused, match="cannot start on version 2"):
        EngineService(folder, RECIPE.engine, store=str(tmp_path / "weights"))


def test_the_reference_is_the_policy_that_rl_began_with(tmp_path: Path) -> None:
    recipe = lora_recipe(reward={"kl": 0.01})
    trainer = begun(tmp_path, recipe)
    for step in range(2):
        trainer.train(step, make_groups(recipe, trainer.model, step))
    groups, before = make_groups(recipe, trainer.model, 2), stage_of(trainer)
    expected = reference_kl(load_hf(trainer.paths.model("base")), groups, recipe.rl)
    assert trainer._kls(groups) == pytest.approx(expected, abs=1e-4)
    assert max(abs(value) for value in expected.values()) > 1e-3
    after = stage_of(trainer)
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert trainer._kls(groups) == begun(tmp_path, recipe)._kls(groups), "also after a restart"
    assert adapters_of(trainer.model)
    assert served_state(trainer.model).keys() == adapter_state(trainer.model).keys()
