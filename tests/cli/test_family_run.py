"""The whole line on networks of other families, from a published config.json to a checkpoint for `transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cli.here import etude
from tests.needs import transformers

from etude.journal import RunPaths, read_metrics
from etude.model import load_hf
from etude.pretrain import measure

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

OVERRIDES = """
cluster.backend=inline
compute.dtype=bfloat16 compute.threads=1
tasks.train=8 tasks.dev=2 tasks.test=2
corpus.generated_documents=400 corpus.max_file_bytes=20_000
pretrain.steps=3 pretrain.batch=2
long.steps=1 long.length=512
model.mtp_heads=1 stages=["pretrain","long","mtp","sft","rl"] mtp.steps=2 mtp.batch=2
sft.steps=2 sft.batch=2 sft.demonstrations=8
rl.steps=1 rl.prompts_per_step=2 rl.group=2 rl.evaluate_every=0 rl.drop_unsolved=false rl.min_spread=0.0
evaluation.samples=1
"""
SHAPE = json.loads(Path("recipes/shapes/tiny-qwen3/config.json").read_text()) | {"num_hidden_layers": 2}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


@pytest.mark.parametrize(
    "shape",
    [SHAPE, SHAPE | EXPERTS | {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"]}],
    ids=lambda shape: shape["model_type"],
)
def test_from_a_shape_to_a_checkpoint(shape: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "HELD_OUT_TOKENS", 1_024)
    (tmp_path / "shape").mkdir()
    (tmp_path / "shape/config.json").write_text(json.dumps(shape))
    begun = ("--runs", tmp_path, "--name", "run", f"model.from={tmp_path / 'shape'}", *OVERRIDES.split())
    done = etude("run", "recipes/tiny-qwen3.toml", *begun)
    assert done.returncode == 0, done.stderr
    mixed = "num_experts" in shape
    assert ("matmuls of experts" in done.stderr) is mixed
    paths = RunPaths(tmp_path / "run")
    assert ("balance_loss" in read_metrics(paths.metrics("pretrain"))[-1]) is mixed
    assert ("p99_filter" in read_metrics(paths.metrics("rl"))[-1]) is mixed, "the first step is probed"
    assert not list(paths.root.glob("stages/*/checkpoints")), "a stage that has ended needs none"
    done = etude("export", tmp_path / "run", tmp_path / "exported")
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "exported/config.json").read_text())
    reached = {"max_position_embeddings": 4 * 320}  # long.factor times the rows of pretraining
    assert written == shape | reached | {name: written[name] for name in ("rope_scaling", "torch_dtype", "etude")}
    assert written["etude"] == {"mtp_heads": 1}
    assert read_metrics(paths.metrics("rl"))[-1]["draft_loss"] > 0, "the engine drafts, and RL trains the head on"
    assert written["rope_scaling"]["type"] == "yarn"
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported", dtype=torch.float32)
    tokens = torch.arange(300)[None] * 7 % 1000
    with torch.no_grad():
        expected = theirs.eval()(tokens).logits
        found = load_hf(tmp_path / "exported", torch.float32)(tokens).logits_btv
        base, trained = (load_hf(paths.model(stage), torch.float32).mtp.state_dict() for stage in ("base", "mtp"))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert not torch.equal(base["0.eh_proj.weight"], trained["0.eh_proj.weight"])
