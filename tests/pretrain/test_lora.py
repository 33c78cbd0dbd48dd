"""Supervised stages of adapters: one after the other trains the same ones, on a base that stays as it is."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from etude.model import adapter_state, load_hf
from etude.pretrain import measure, run_stage
from etude.pretrain.continued import ContinuedTrainer
from etude.recipe import Recipe
from etude.training import Compute, load_checkpoint
from etude.weights import WeightStore

STAGES = ("pretrain", "long", "sft")
ADAMW = {"name": "adamw", "lr": 1e-2, "warmup_steps": 2}


@pytest.fixture(autouse=True)
def _short_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "HELD_OUT_TOKENS", 1_024)


def begin(finished: Any, root: Path) -> tuple[Path, Recipe]:
    """A run that begins with the model of another one's first stage."""
    run, recipe, _ = finished
    shutil.copytree(run, root, ignore=shutil.ignore_patterns("stages"))
    shutil.copytree(run / "stages/pretrain/model", root / "stages/base/model")
    plain = recipe.model_dump(by_alias=True)
    for stage in STAGES:
        plain[stage] |= {"optimizer": ADAMW, "steps": 5, "batch": 2, "checkpoint_seconds": 0.0}
    plain |= {"model": {"from": "base"}, "stages": list(STAGES)}
    plain["lora"] = {"rank": 4, "targets": ["attention", "mlp", "experts", "shared"]}
    return root, Recipe.model_validate(plain)


def test_stages_train_adapters_alone_and_go_on_with_them(finished: Any, tmp_path: Path) -> None:
    run, recipe = begin(finished, tmp_path / "run")
    base = {file.name: file.read_bytes() for file in (run / "stages/base/model").iterdir()}
    results: dict[str, Any] = {}
    for stage in STAGES:
        for progress in run_stage(stage, run, recipe):
            results[stage] = progress.get("result")
    assert results["sft"]["loss_after"] < results["sft"]["loss_before"] - 0.1
    assert results["long"]["late_loss_after"] < results["long"]["late_loss_before"]
    assert results["pretrain"]["loss_after"] < results["pretrain"]["loss_before"]
    assert {file.name: file.read_bytes() for file in (run / "stages/base/model").iterdir()} == base
    untouched = load_hf(run / "stages/base/model").state_dict()
    models = {stage: load_hf(run / "stages" / stage / "model") for stage in STAGES}
    for stage, model in models.items():
        folder = run / "stages" / stage / "model"
        assert not (folder / "model.safetensors").exists()
        assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == "../../base/model"
        assert (folder / "tokenizer.json").read_bytes() == (run / "tokenizer.json").read_bytes()
        assert (model.config.rope.scaling is not None) == (folder / "config.json").exists() == (stage != "pretrain")
        state = model.state_dict()
        assert all(torch.equal(state[name], tensor) for name, tensor in untouched.items())
        newest = max((run / "stages" / stage / "checkpoints").glob("step-*"))
        buffers = load_checkpoint(newest)["buffers"]
        assert any(name.endswith("bias") for name in buffers)
        assert all(torch.equal(untouched[name], buffer) for name, buffer in buffers.items() if name in untouched)
        assert (newest / "tensors.safetensors").stat().st_size < 0.5 * len(base["model.safetensors"])
    first, second, third = (adapter_state(models[stage]) for stage in STAGES)
    for name in first:
        heads = name.startswith("mtp.")
        assert torch.equal(first[name], second[name]) is heads, "heads are trained in SFT"
        assert not torch.equal(second[name], third[name])
    shutil.rmtree(run / "stages/sft")
    plain = recipe.model_dump(by_alias=True)
    plain["sft"] |= {"steps": 1, "optimizer": ADAMW | {"lr": 1e-30}}
    list(run_stage("sft", run, Recipe.model_validate(plain)))
    went_on = adapter_state(load_hf(run / "stages/sft/model"))
    for name, tensor in second.items():  # a step so small moves only what is still zero
        torch.testing.assert_close(went_on[name], tensor, rtol=0, atol=1e-20)


def test_stopping_anywhere_changes_no_bit(finished: Any, tmp_path: Path) -> None:
    ended = []
    for stops in ((), (2, 4)):
        run, recipe = begin(finished, tmp_path / f"run-{len(stops)}")
        alone = recipe.model_copy(update={"stages": ["sft"]})
        for stop in stops:
            for progress in run_stage("sft", run, alone):
                if progress["loss"] is not None and progress["step"] >= stop:
                    break
        first, *_ = run_stage("sft", run, alone)
        assert first["step"] == (3 if stops else 0)
        ended.append((run / "stages/sft/model/adapter_model.safetensors").read_bytes())
    assert ended[0] == ended[1]


@pytest.mark.parametrize(("targets", "learn"), [(["mlp"], False), (["experts"], True)])
def test_heads_learn_where_they_have_adapters(finished: Any, tmp_path: Path, targets: list[str], learn: bool) -> None:
    run, recipe = begin(finished, tmp_path / "run")
    plain = recipe.model_dump(by_alias=True) | {"stages": ["sft"]}
    plain["lora"]["targets"] = targets
    told = [progress for progress in run_stage("sft", run, Recipe.model_validate(plain)) if "grad_norm" in progress]
    assert {"draft_loss" in progress for progress in told} == {learn}


def test_continued_sft_publishes_adapters_alone(finished: Any, tmp_path: Path) -> None:
    run, recipe = begin(finished, tmp_path / "run")
    shutil.copytree(run / "stages/base", run / "stages/sft")  # no adapters yet
    plain = recipe.model_dump(by_alias=True) | {
        "stages": ["sft", "rl"],
        "continued": {"seconds": 9, "optimizer": ADAMW},
    }
    plain["rl"]["optimizer"] = ADAMW
    store = WeightStore(str(run / "weights"))
    compute = asdict(Compute("cpu", "bfloat16", 1, "a test"))
    trainer = ContinuedTrainer(
        str(run), Recipe.model_validate(plain).model_dump(by_alias=True), compute, str(run / "weights")
    )
    trainer.train(0, str(run / "demonstrations"), str(run / "none"), [], 0.5)
    kinds = adapter_state(trainer.model).keys()
    assert [store.read(version).keys() for version in store.versions()] == [kinds] * 2
    state = load_checkpoint(max((run / "stages/continued/checkpoints").glob("step-*")))
    assert (state["optimizer"]["masters"].keys(), state["buffers"]) == (kinds, {})
    exported = adapter_state(load_hf(trainer.export()))
    assert all(torch.equal(tensor, trainer.masters.masters[name]) for name, tensor in exported.items())
