"""The command trains and samples in every precision, and batch-invariant: a few real steps of each stage up to RL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.here import etude

from etude.journal import RunPaths, read_metrics
from etude.model import load_hf
from etude.pretrain import measure
from etude.weights import WeightStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

HELD_OUT_TOKENS = 1_024
"""That losses are measured on: bf16 is slow where a processor has none, and nothing here is about what was learnt."""
OVERRIDES = """
cluster.backend=inline
compute.dtype=bfloat16 compute.threads=1
model.hidden_size=64 model.num_hidden_layers=2 model.intermediate_size=128 model.moe_intermediate_size=32
tasks.train=8 tasks.dev=2 tasks.test=2
corpus.generated_documents=400 corpus.max_file_bytes=20_000
pretrain.steps=3 pretrain.batch=2
long.steps=1 long.length=512
mtp.steps=1 mtp.joint_steps=1 mtp.batch=2
sft.steps=2 sft.batch=2 sft.demonstrations=8
rl.steps=1 rl.prompts_per_step=2 rl.group=2 rl.evaluate_every=0 rl.drop_unsolved=false rl.min_spread=0.0
"""
"""So short a training solves nothing: what fails is trained on too."""


@pytest.fixture(scope="module", autouse=True)
def measured_on_little() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(measure, "HELD_OUT_TOKENS", HELD_OUT_TOKENS)
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With one in which nothing is rounded; the others take from it what does not depend on that."""
    folder = tmp_path_factory.mktemp("runs")
    etude_run(folder, "bf16", "--until", "sft")
    return folder


def etude_run(runs: Path, name: str, *more: str) -> str:
    done = etude("run", "recipes/tiny.toml", "--runs", runs, "--name", name, *more, *OVERRIDES.split())
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("experts", "invariant"),
    [
        ("nvfp4", False),
        ("mxfp8", True),
        pytest.param("nvfp4_tensor", False, marks=pytest.mark.soak),
        pytest.param("fp8_block", False, marks=pytest.mark.soak),
    ],
)
def test_all_stages_and_rl(runs: Path, experts: str, invariant: bool) -> None:
    rounding = [
        f"precision.experts={experts}",
        "precision.emulate=true",
        f"precision.invariant={str(invariant).lower()}",
    ]
    said = etude_run(runs, experts, "--reuse", str(runs / "bf16"), "--until", "rl", *rounding)
    assert "matmuls of experts by reference on cpu" in said
    assert f"precision: routed experts: forward {experts}, backward" in said
    assert said.count("taken over from bf16") == 3, "tasks, corpus and demonstrations: the rest is trained anew"
    paths = RunPaths(runs / experts)
    assert set(json.loads(paths.summary.read_text())["precision"]) == {"pretrain", "long", "mtp", "sft", "rl"}
    plain, rounded = (read_metrics(RunPaths(runs / name).metrics("pretrain"))[-1] for name in ("bf16", experts))
    assert 0 < abs(rounded["loss"] - plain["loss"]) < 0.2
    # Of every token that was sampled, by the trainer and by the engine: the same logits, or what bf16 makes of them.
    assert (read_metrics(paths.metrics("rl"))[-1]["mismatch_mean"] < 1e-6) == invariant
    held = WeightStore(paths.weights).read(1)
    assert "model.layers.1.mlp.experts.down_proj.codes" in held
    network = load_hf(paths.model("rl")).config
    assert f"model.layers.{network.num_hidden_layers}.mlp.experts.down_proj.scales" in held, "of the MTP head"
    assert network.n_routed_experts == 8
    assert_blessed(paths, experts)


def assert_blessed(paths: RunPaths, experts: str) -> None:
    """By the doctor, on what the run itself has trained in its format."""
    asked = ["--json", "--formats", f"bf16,{experts}", "--sequences", "2"]
    done = etude("doctor", "numerics", paths.root, *asked)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["stage"], found["own"], found["dtype"]) == ("rl", experts, "bfloat16")
    assert (found["blessed"], found["faults"]) == (True, [])
    plain, own = found["formats"]
    for before, after in zip(plain["layers"][1:], own["layers"][1:], strict=True):
        assert 0 < before["experts"]["mean"] < after["experts"]["mean"] < 0.5
        assert before["weights"]["mean"] < after["weights"]["mean"] < 0.2
        assert 0 <= after["flips"] <= 1
    for one in (plain, own):
        assert all(said["logprobs"]["mean"] < 0.5 and said["k3"] >= 0 for said in one["engine"].values())
    assert (paths.plots / "numerics.png").stat().st_size > 10_000


def test_rl_alone_takes_what_was_trained_without_rounding(runs: Path) -> None:
    """Nothing but RL is rounded, so a run that has all before it gives all of that."""
    rounding = ["precision.experts=nvfp4", "precision.emulate=true", "precision.since=rl"]
    said = etude_run(runs, "rl-alone", "--reuse", str(runs / "bf16"), "--until", "rl", *rounding)
    assert said.count("taken over from bf16") == 7
    assert list(json.loads(RunPaths(runs / "rl-alone").summary.read_text())["precision"]) == ["rl"]
