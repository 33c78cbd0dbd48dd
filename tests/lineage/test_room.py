"""A run that this machine cannot hold is refused before it starts, by figures that are true."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.lineage.contexts import open_context
from tests.lineage.examined import MODEL

from etude.journal import RunPaths
from etude.lineage import LineageError, LineageState, room
from etude.lineage.machine import memory_bytes
from etude.lineage.room import disk_needs, memory_needs, require_room
from etude.lineage.state import StageRecord
from etude.model import Transformer, begin_adapters, config_from_recipe, load_hf, save_hf, save_trained, survey
from etude.recipe import Recipe
from etude.recipe.lora import LoraRecipe
from etude.training import MasterWeights, build_optimizer

Usage = namedtuple("Usage", "total used free")


def recipe_with(**sections: Any) -> Recipe:
    given = {"name": "r", "model": MODEL, "tokenizer": {"vocab_size": 300}, "engine": {"context": 64}}
    return Recipe.model_validate(given | sections)


def network(recipe: Recipe) -> Transformer:
    return Transformer(config_from_recipe(recipe.model, recipe.tokenizer.vocab_size))


def have(monkeypatch: pytest.MonkeyPatch, disk: float = 1e15, memory: float = 1e15) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(disk, 0, disk))
    monkeypatch.setattr(room, "memory_bytes", lambda: memory)


def refusal(recipe: Recipe, root: Path, state: LineageState | None = None) -> str:
    root.mkdir(exist_ok=True)
    with pytest.raises(LineageError) as told:
        require_room(recipe, RunPaths(root), state or LineageState())
    assert "\n" not in str(told.value)
    return str(told.value)


def test_the_refusal_says_what_needs_how_much_and_which_field_to_change(tmp_path, monkeypatch) -> None:
    asked = recipe_with(stages=["pretrain", "sft", "rl"], rl={"steps": 10, "keep_checkpoints": 3})
    have(monkeypatch, disk=400e6)
    said = refusal(asked, tmp_path / "run")
    assert said.startswith(f"{tmp_path / 'run'} has room for 0.4 GB, the run needs 0.5 GB: 0.5 GB for all else, ")
    assert "4 checkpoints of rl" in said
    assert "11 versions of the weights" in said
    assert "the models of pretrain, sft, rl" in said
    assert said.endswith(
        "; lower rl.keep_checkpoints, or leave out one of the stages, or put them elsewhere with weights.store, or "
        "choose another disk with --runs"
    )


def test_what_is_written_counts_and_a_stage_that_has_ended_needs_no_checkpoints(tmp_path, monkeypatch) -> None:
    asked = recipe_with(stages=["pretrain", "rl"], rl={"steps": 0, "keep_checkpoints": 9})
    network_of_it = network(asked).config
    needed = sum(need.bytes for need in disk_needs(asked, network_of_it))
    context = open_context(tmp_path / "run", asked)
    have(monkeypatch, disk=needed - 4e5)
    refusal(asked, tmp_path / "run")
    model = context.paths.model("pretrain")
    model.mkdir(parents=True)
    (model / "model.safetensors").write_bytes(bytes(500_000))
    require_room(asked, context.paths, context.state)
    have(monkeypatch, disk=needed - 2e6)
    refusal(asked, tmp_path / "run", context.state)
    context.state.stages["rl"] = StageRecord("", "", 0.0, done=True)
    require_room(asked, context.paths, context.state)


def test_a_base_that_cannot_be_linked_takes_room(tmp_path, monkeypatch) -> None:
    save_hf(network(recipe_with()), tmp_path / "base")
    size = (tmp_path / "base" / "model.safetensors").stat().st_size
    given = {"from": str(tmp_path / "base")}
    linked, random, fewer = (
        recipe_with(stages=["rl"], model=given | more) for more in ({}, {"weights": "random"}, {"mtp_heads": 0})
    )
    adapted = begin_adapters(load_hf(tmp_path / "base"), LoraRecipe(rank=2))
    save_trained(adapted, tmp_path / "adapters", tmp_path / "base", tmp_path / "base")
    merged = recipe_with(stages=["rl"], model={"from": str(tmp_path / "adapters")})
    root = tmp_path / "run"
    root.mkdir()
    have(monkeypatch)
    monkeypatch.setattr(room, "_REST", 0)
    for asked, copied in ((linked, False), (random, True), (fewer, True), (merged, True)):
        needed = sum(need.bytes for need in disk_needs(asked, room.network_of(asked)))
        have(monkeypatch, disk=needed + size * 0.5)
        if copied:
            assert "for the base model" in refusal(asked, root)
        else:
            require_room(asked, RunPaths(root), LineageState())


def held_by(model: Transformer, asked: Recipe, stage: str, dtype: str) -> int:
    """Return the bytes of all tensors of a trainer at the end of a step that it takes."""
    masters = MasterWeights(model, getattr(torch, dtype))
    optim = build_optimizer(model, getattr(asked, stage).optimizer, 1, masters=masters)
    model(torch.randint(64, (2, 16))).logits_btv.sum().backward()
    optim.accumulate()
    held = dict(masters.gradients)
    optim.step()
    tensors = [*masters.masters.values(), *model.parameters(), *held.values()]
    tensors += [tensor for name in ("moments", "squares") for tensor in tensors_of(optim.state_dict()[name])]
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())


@pytest.mark.parametrize(
    ("name", "dtype", "moments"),
    [("adamw", "float32", "float32"), ("muon", "bfloat16", "float32"), ("adamw", "float32", "8bit")],
)
def test_memory_is_refused_only_where_a_stage_certainly_holds_more(name, dtype, moments, tmp_path, monkeypatch) -> None:
    optimizer = {"optimizer": {"name": name, "moments": moments}, "steps": 1}
    asked = recipe_with(stages=["pretrain"], compute={"dtype": dtype}, pretrain=optimizer, model=MODEL)
    model = network(asked)
    planned = sum(need.bytes for need in memory_needs(asked, model.config, "pretrain"))
    assert planned == pytest.approx(held_by(model, asked, "pretrain", dtype), rel=0.02)
    monkeypatch.setattr(room, "network_of", lambda recipe, paths: model.config)
    have(monkeypatch, memory=planned + 1)
    tmp_path.joinpath("run").mkdir()
    require_room(asked, RunPaths(tmp_path / "run"), LineageState())
    have(monkeypatch, memory=planned - 1)
    said = refusal(asked, tmp_path / "run")
    assert said.startswith("this machine's memory is ")
    assert ("pretrain.optimizer.name" in said) == (name == "adamw")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_need_their_base_once(dtype) -> None:
    model = network(recipe_with())
    asked = recipe_with(
        model={"from": "a model"},
        stages=["sft", "rl"],
        lora={"rank": 8, "targets": ["attention", "experts"]},
        compute={"dtype": dtype},
        **{stage: {"optimizer": {"name": "adamw"}} for stage in ("sft", "rl")},
    )
    begin_adapters(model, asked.lora)
    heads = sum(p.nbytes for name, p in model.named_parameters() if name.startswith("mtp.") and p.requires_grad)
    planned = sum(need.bytes for need in memory_needs(asked, model.config, "sft"))
    assert planned == pytest.approx(held_by(model, asked, "sft", dtype) + 3 * heads, rel=0.02)
    assert sum(need.bytes for need in disk_needs(asked, model.config)) < 1.1 * room._REST


def tensors_of(state: Any) -> list[torch.Tensor]:
    """All tensors of nested dicts."""
    if isinstance(state, torch.Tensor):
        return [state]
    return [tensor for part in state.values() for tensor in tensors_of(part)] if isinstance(state, dict) else []


def test_rl_needs_the_engine_beside_the_trainer() -> None:
    asked = recipe_with(compute={"dtype": "float32"}, sft={"optimizer": {"name": "adamw"}})
    total = sum(parameter.numel() for parameter in network(asked).parameters())
    trainer, beside = (sum(n.bytes for n in memory_needs(asked, network(asked).config, s)) for s in ("sft", "rl"))
    assert beside - trainer == 4 * total


def test_a_container_may_have_less_than_the_machine(tmp_path) -> None:
    limit = tmp_path / "memory.max"
    whole = memory_bytes([str(limit)])
    limit.write_text("max\n")
    assert memory_bytes([str(limit)]) == whole
    limit.write_text("123456\n")
    assert memory_bytes([str(limit)]) == 123456


def test_adapters_are_what_is_stored_and_optimised(tmp_path: Path) -> None:
    save_hf(network(recipe_with()).initialise(1), tmp_path)
    config = survey(tmp_path).config
    given = {"model": {"from": str(tmp_path)}, "stages": ["sft"], "sft": {"optimizer": {"name": "adamw", "lr": 1e-4}}}
    whole, adapted = (recipe_with(**given, lora={"rank": rank}) for rank in (0, 2))
    learned = sum(
        two.numel() for two in begin_adapters(Transformer(config), adapted.lora).parameters() if two.requires_grad
    )
    needs = {need.what: need.bytes for need in memory_needs(adapted, config, "sft")}
    assert needs["fp32 weights"] == 4 * learned < memory_needs(whole, config, "sft")[0].bytes / 5
    assert needs["frozen weights"] > memory_needs(whole, config, "sft")[0].bytes / 4
    assert disk_needs(adapted, config)[0].bytes == 4 * learned
