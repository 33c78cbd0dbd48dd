"""A line of adapters, on another run's model: killed in SFT and RL it ends with the same bits, and can be exported."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
import torch
from tests.cli.here import etude
from tests.needs import transformers
from tests.survival.runner import PATIENCE, RECIPE, Run, cleared

from etude.model import adapter_state, load_hf
from etude.recipe import Recipe, save_recipe
from etude.weights import WeightStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(PATIENCE)]

STEPS = 2


@pytest.fixture
def recipe(base: Path, tmp_path: Path) -> Path:
    plain = tomllib.loads(RECIPE.read_text())
    adamw = {"name": "adamw", "lr": 1e-3}
    plain["sft"] |= {"steps": 8, "optimizer": adamw}
    plain["rl"] |= {"steps": STEPS, "mode": "sync", "evaluate_every": 0, "optimizer": adamw, "reward": {"kl": 0.01}}
    plain |= {"model": {"from": str(base / "stages/sft/model")}, "stages": ["sft", "rl"]}
    plain["lora"] = {"rank": 4, "targets": ["attention", "mlp", "experts", "shared"]}
    save_recipe(Recipe.model_validate(plain), tmp_path / "lora.toml")
    return tmp_path / "lora.toml"


def trained(run: Run) -> dict[str, bytes]:
    versions = sorted(file for file in run.paths.weights.rglob("manifest.json"))
    contents = {file.parent.name: json.loads(file.read_text())["content"].encode() for file in versions}
    stages = ("sft", "rl")
    return contents | {stage: (run.paths.model(stage) / "adapter_model.safetensors").read_bytes() for stage in stages}


def test_sft_and_rl_of_adapters_survive_kills(recipe: Path, tmp_path: Path) -> None:
    with cleared(Run(tmp_path / "undisturbed", recipe=recipe)) as run:
        run.start().finish()
        expected = trained(run)
        assert len(expected) == STEPS + 3, "versions 0, 1, 2 and two models"
        assert len(set(expected.values())) == len(expected)
        store = WeightStore(str(run.paths.weights))
        assert store.read(STEPS).keys() == adapter_state(load_hf(run.paths.model("rl"))).keys()
        assert not list((run.root / "stages").glob("[sr]*/model/model.safetensors"))
    with cleared(Run(tmp_path / "killed", recipe=recipe)) as run:
        run.start()
        run.wait(lambda run: any(run.paths.checkpoints("sft").glob("step-*")))
        run.kill_driver()
        run.start()
        run.wait(lambda run: run.count("TrainStarted") > 0)
        run.kill("trainer")
        run.wait(lambda run: run.count("Trained") > 0)
        run.kill_driver()
        run.start().finish()
        assert trained(run) == expected
        assert run.left_behind() == []
        done = etude("export", run.root, tmp_path / "merged")
        assert done.returncode == 0, done.stderr
    tokens = torch.arange(200)[None] * 7 % 700
    with torch.no_grad():
        adapted = load_hf(tmp_path / "killed/stages/rl/model")(tokens).logits_btv
        began = load_hf(tmp_path / "killed/stages/base/model")(tokens).logits_btv
        theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
        found = theirs.eval()(tokens).logits
    assert (adapted - began).abs().max() > 1e-2, "nothing was learnt"
    torch.testing.assert_close(found, adapted, rtol=1e-4, atol=1e-4)
