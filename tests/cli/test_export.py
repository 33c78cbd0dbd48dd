"""The model of a stage as a checkpoint of its own: what it computes, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.lineage.examined import VOCAB, examined_run

from etude.cli.export import export_command
from etude.journal import RunPaths
from etude.lineage import LineageError
from etude.model import (
    CannotQuantise,
    PoisonedWeights,
    adapters_of,
    begin_adapters,
    load_codes,
    load_hf,
    save_trained,
)
from etude.model.precision import STORED
from etude.recipe import Recipe, save_recipe

TOKENS = torch.arange(12).view(2, 6) % VOCAB


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    paths = examined_run(tmp_path_factory.mktemp("examined") / "run")
    paths.tokenizer.write_text("{}")
    return paths


def logits(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        return load_hf(folder)(TOKENS).logits_btv


def test_the_latest_stage_as_it_is(run: RunPaths, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "new" / "agent"
    assert export_command(run.root, folder, None, None) == 0
    assert capsys.readouterr().out == f"{folder}: rl of {run.root}\n"
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert torch.equal(logits(folder), logits(run.model("rl")))
    assert not load_codes(folder)


@pytest.mark.parametrize("experts", STORED)
def test_another_stage_with_its_experts_in_any_format(run: RunPaths, tmp_path: Path, capsys, experts: str) -> None:
    export_command(run.root, tmp_path, "sft", experts)
    assert capsys.readouterr().out.startswith(f"{tmp_path}: sft of {run.root}, its experts in {experts}: ")
    wanted = logits(run.model("sft"))
    off = float((logits(tmp_path) - wanted).norm() / wanted.norm())
    assert 0 < off < 0.3
    assert all(".mlp.experts." in name for name in load_codes(tmp_path))
    assert load_codes(tmp_path)


@pytest.fixture
def adapted(tmp_path: Path) -> RunPaths:
    """A run whose stage rl trained adapters, of a model with experts, shared experts and an MTP head."""
    paths = examined_run(tmp_path / "run")
    shutil.rmtree(paths.model("rl"))
    paths.model("sft").rename(tmp_path / "base")
    shutil.copytree(tmp_path / "base", paths.model("base"))
    adamw = {"optimizer": {"name": "adamw"}}
    lora = {"rank": 2, "targets": ["attention", "experts", "shared"]}
    sections = {"model": {"from": str(tmp_path / "base")}, "stages": ["rl"], "rl": adamw, "lora": lora}
    recipe = Recipe.model_validate({"name": "adapted", **sections})
    save_recipe(recipe, paths.recipe)
    model = begin_adapters(load_hf(paths.model("base")), recipe.lora)
    for adapter in adapters_of(model).values():
        torch.nn.init.normal_(adapter.b, std=0.1)
    save_trained(model, paths.model("rl"), paths.model("base"), paths.root)
    return paths


def test_adapters_are_merged_or_written_alone(adapted: RunPaths, tmp_path: Path, capsys) -> None:
    expected = logits(adapted.model("rl"))
    assert not torch.allclose(expected, logits(adapted.model("base")), atol=1e-2)
    assert export_command(adapted.root, tmp_path / "merged", None, None) == 0
    torch.testing.assert_close(logits(tmp_path / "merged"), expected, rtol=1e-4, atol=1e-4)
    assert not (tmp_path / "merged/adapter_config.json").exists()
    capsys.readouterr()
    assert export_command(adapted.root, tmp_path / "alone", None, None, adapter=True) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"{tmp_path / 'alone'}: adapters of rl of {adapted.root}"
    assert re.fullmatch(r"left out: \d+ adapters of MTP heads, .*", said[1])
    assert re.fullmatch(
        r"PEFT 0\.21 does not load \d+ of .* also layers\.1\.mlp\.shared_experts\.gate_proj; .*", said[2]
    )
    settings = json.loads((tmp_path / "alone/adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str(tmp_path / "base"), "as the recipe named it"
    assert torch.equal(logits(tmp_path / "alone"), expected)
    shutil.rmtree(tmp_path / "base")
    export_command(adapted.root, tmp_path / "again", None, None, adapter=True)
    settings = json.loads((tmp_path / "again/adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str(adapted.model("base"))


def test_what_cannot_be_adapters_alone_is_refused(run: RunPaths, adapted: RunPaths, tmp_path: Path) -> None:
    with pytest.raises(LineageError, match=r"stage rl of .* has no adapters \(lora\.rank\)"):
        export_command(run.root, tmp_path / "out", None, None, adapter=True)
    with pytest.raises(LineageError, match="--adapter writes none"):
        export_command(adapted.root, tmp_path / "out", None, "mxfp8", adapter=True)
    assert not (tmp_path / "out").exists()


def test_one_that_was_killed_begins_anew(run: RunPaths, tmp_path: Path) -> None:
    half = tmp_path / ".agent.partial"
    half.mkdir()
    (half / "model.safetensors.partial").write_text("half")
    export_command(run.root, tmp_path / "agent", None, None)
    assert [file.name for file in tmp_path.iterdir()] == ["agent"]
    assert not list((tmp_path / "agent").glob("*.partial"))


def test_what_is_there_is_not_written_over(run: RunPaths, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    for folder in (tmp_path, tmp_path / "notes"):
        with pytest.raises(LineageError, match="is there already: name a folder that is new or empty"):
            export_command(run.root, folder, None, None)
    assert [file.name for file in tmp_path.iterdir()] == ["notes"]


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    paths, folder = examined_run(tmp_path / "run", moe_intermediate_size=24), tmp_path / "out"
    for experts, said in (("int4", "checkpoints can be written in mxfp8, nvfp4"), ("mxfp8", "24")):
        with pytest.raises(CannotQuantise, match=said):
            export_command(paths.root, folder, None, experts)
    file = paths.model("rl") / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"][0] = float("inf")
    save_file(tensors, file)
    with pytest.raises(PoisonedWeights, match=r"model\.norm\.weight has 1 of 64 numbers that are not finite"):
        export_command(paths.root, folder, None, None)
    assert not folder.exists()
