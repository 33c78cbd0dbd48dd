"""A run's checkpoint under every format, and what is not blessed."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.lineage.examined import MODEL, VOCAB, examined_run

from etude.corpus import hold_out
from etude.journal import RunPaths
from etude.lineage.numerics import FORMATS, NumericsReport, _in_format, examine, held_out_sequences
from etude.lineage.state import Finished, LineageError
from etude.model import CannotQuantise, Transformer, compute_with, config_from_recipe
from etude.pretrain.sft import demonstrations
from etude.recipe import load_recipe
from etude.recipe.model import ModelRecipe
from etude.recipe.precision import PrecisionRecipe
from etude.training import TrainingError

EXPERT = "model.layers.2.mlp.experts.1.up_proj.weight"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    return examined_run(tmp_path_factory.mktemp("examined") / "run", experts="mxfp8")


@pytest.fixture(scope="module")
def report(run: RunPaths) -> NumericsReport:
    return examine(run.root, sequences=2)


def test_every_format_is_measured_on_the_latest_stage(run: RunPaths, report: NumericsReport) -> None:
    assert (report.stage, report.checkpoint, report.own) == ("rl", str(run.model("rl")), "mxfp8")
    assert [one.name for one in report.formats] == list(FORMATS)
    assert (report.sequences, report.faults, report.left_out) == (2, [], {})
    for one in report.formats:
        assert [drift.layer for drift in one.layers] == [0, 1, 2]
        assert set(one.engine) == {"64 at a time", "one by one", "sampled"}
        assert one.engine["one by one"].tokens == report.tokens - 2


NAMED: list[dict[str, Any]] = [
    {"kernels": "torch", "invariant": True, "emulate": False},
    {"kernels": "triton", "emulate": False},
    {"kernels": "reference"},
    {"experts": "mxfp8", "kernels": "triton", "emulate": False},
    {"experts": "mxfp8", "kernels": "reference", "also": ["shared"]},
    {"experts": "nvfp4", "kernels": "auto", "reciprocal_bits": 22, "invariant": True},
]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("said", NAMED, ids=str)
def test_a_format_is_measured_in_plain_torch_whoever_computes_the_run(said: dict[str, Any], name: str) -> None:
    """Kernels take no fp32, none is batch-invariant, and there is none of NVFP4."""
    recipe = PrecisionRecipe(**{"emulate": True} | said)
    found = _in_format(recipe, name)
    assert (found.experts, found.by_kernels) == (name, False)
    assert PrecisionRecipe.model_validate(found.model_dump()) == found
    assert found.also == ([] if name == "bf16" else recipe.also)
    assert found.invariant == (recipe.invariant and name != "nvfp4_tensor")
    assert found.reciprocal_bits == (recipe.reciprocal_bits if name.startswith("nvfp4") else None)
    compute_with(Transformer(config_from_recipe(ModelRecipe(**MODEL), VOCAB)), found)


def test_in_fp32_nothing_drifts_and_coarser_formats_drift_more(report: NumericsReport) -> None:
    found = {one.name: one for one in report.formats}
    assert all(drift.residual.max == 0 for drift in found["bf16"].layers), "the run computes in fp32"
    stream = {name: one.layers[-1].residual.mean for name, one in found.items()}
    assert stream["bf16"] < stream["fp8_block"] < stream["nvfp4"]
    assert stream["bf16"] < stream["mxfp8"] < stream["nvfp4"]
    for name in ("bf16", "mxfp8", "fp8_block", "nvfp4"):
        assert all(said.logprobs.mean < 1e-3 for said in found[name].engine.values()), "row by row they are alike"
    assert found["nvfp4_tensor"].engine["one by one"].logprobs.mean > 1e-2, "one scale for all tokens of a pass"


def test_sequences_are_those_that_sft_has_not_learnt(run: RunPaths) -> None:
    recipe = load_recipe(run.recipe)
    train, _ = hold_out(demonstrations(run.root, recipe.sft), 0.05)
    learnt = {tuple(trace.segments[0].tokens[:64].tolist()) for trace in train}
    stage = Finished(run, "rl", recipe)
    found = held_out_sequences(stage, 96, 100)
    assert found
    assert not learnt & {tuple(tokens.tolist()) for tokens in found}
    assert max(map(len, found)) <= 64, "what the engine has room for"
    assert len(held_out_sequences(stage, 96, 1)) == 1


def poisoned(run: RunPaths, row: slice | int, value: float) -> NumericsReport:
    file = run.model("sft") / "model.safetensors"
    tensors = load_file(file)
    tensors[EXPERT][row] = value
    save_file(tensors, file)
    return examine(run.root, "sft")


@pytest.mark.parametrize(
    ("value", "said"), [(math.nan, "not finite"), (math.inf, "not finite"), (torch.finfo(torch.float32).max, "row 3")]
)
def test_a_poisoned_checkpoint_is_not_measured(tmp_path: Path, value: float, said: str) -> None:
    report = poisoned(examined_run(tmp_path / "run"), 3, value)
    (fault,) = report.faults
    assert fault.where == EXPERT
    assert said in fault.problem
    assert report.formats == []


def test_weights_that_are_finite_but_overflow_are_named_where_they_do(tmp_path: Path) -> None:
    """Half of a row as large as fp32 goes is within bounds for a weight, and infinite once it is multiplied."""
    report = poisoned(examined_run(tmp_path / "run"), slice(None), 1e38)
    assert report.faults[0].where == "the sum of layer 2's experts"
    assert report.formats == []
    assert asdict(report)["faults"][0]["problem"].endswith("not finite")


def test_what_overflows_in_the_engine_alone_is_named_too(tmp_path: Path) -> None:
    """It multiplies queries by what the trainer multiplies latents with: large by large, in place of large by small."""
    run = examined_run(tmp_path / "run")
    file = run.model("rl") / "model.safetensors"
    tensors = load_file(file)
    for name, factor in (("q_proj", 1e20), ("kv_b_proj", 1e25), ("kv_a_layernorm", 1e-35)):
        tensors[f"model.layers.1.self_attn.{name}.weight"] *= factor
    save_file(tensors, file)
    report = examine(run.root, formats=["bf16"], sequences=1)
    assert [fault.where for fault in report.faults] == [
        "under bf16, the engine's log-probs, 64 at a time,",
        "under bf16, the engine's log-probs, one by one,",
    ]
    assert report.formats == []


def test_formats_that_do_not_fit_are_left_out_or_refused(tmp_path: Path) -> None:
    run = examined_run(tmp_path / "run", moe_intermediate_size=24)
    report = examine(run.root, sequences=1)
    assert [one.name for one in report.formats] == ["bf16", "fp8_block"]
    assert set(report.left_out) == {"nvfp4", "nvfp4_tensor", "mxfp8"}
    with pytest.raises(CannotQuantise, match="multiples of 32"):
        examine(run.root, formats=["bf16", "mxfp8"], sequences=1)


def test_what_cannot_be_examined(run: RunPaths, tmp_path: Path) -> None:
    with pytest.raises(LineageError, match="is not a run folder"):
        examine(tmp_path)
    with pytest.raises(LineageError, match="no stage 'rlhf': expected one of rl, continued, sft"):
        examine(run.root, "rlhf")
    with pytest.raises(LineageError, match="no finished model of stage mtp yet"):
        examine(run.root, "mtp")
    with pytest.raises(LineageError, match="no format 'int4': expected some of bf16, nvfp4"):
        examine(run.root, formats=["int4"])
    bare = examined_run(tmp_path / "bare")
    (bare.demonstrations / "oracle.parquet").unlink()
    with pytest.raises(TrainingError, match="no demonstrations"):
        examine(bare.root)
