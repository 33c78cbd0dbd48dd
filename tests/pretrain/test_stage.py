"""Every stage: it helps, it is finished once, and stopping it anywhere changes no bit of what it ends with."""

import json
import shutil

import pytest
import torch

from etude.journal import read_rows
from etude.lineage.room import disk_needs
from etude.model import config_from_recipe, load_hf
from etude.pretrain import PretrainError, run_stage
from etude.pretrain.context import file_digest
from etude.training import CheckpointError

from .bits import stage_bits
from .conftest import STAGES


def test_every_stage_helps(finished):
    _, _, last = finished
    results = {stage: progress["result"] for stage, progress in last.items()}
    assert results["pretrain"]["loss_after"] < results["pretrain"]["loss_before"] - 0.5
    assert results["long"]["late_loss_after"] < results["long"]["late_loss_before"] - 0.1
    assert results["mtp"]["accepted_per_draft"] > results["mtp"]["accepted_per_draft_before"] + 0.1
    assert 0 <= results["mtp"]["top1"] <= 1
    assert results["sft"]["loss_after"] < results["sft"]["loss_before"] - 0.5


def test_a_finished_stage_hands_on_a_model_with_its_tokenizer(finished):
    run, recipe, _ = finished
    for stage in STAGES:
        folder = run / "stages" / stage / "model"
        assert (folder / "tokenizer.json").read_bytes() == (run / "tokenizer.json").read_bytes()
        model = load_hf(folder)
        assert model.embed_tokens.weight.dtype == torch.float32
        assert (model.config.rope.scaling is not None) == (stage != "pretrain")
    assert model.config.rope.scaling.factor == recipe.long.factor
    assert model.config.rope.scaling.original_max_position_embeddings == recipe.pretrain.length


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_writes_what_is_planned_before_it_starts(finished, stage):
    run, recipe, _ = finished
    network = config_from_recipe(recipe.model, recipe.tokenizer.vocab_size)
    alone = recipe.model_copy(update={"stages": [stage]})
    models, checkpoints, *_ = disk_needs(alone, network)
    assert checkpoints.what == f"3 checkpoints of {stage}"
    written = run / "stages" / stage
    newest = max((written / "checkpoints").glob("step-*")) / "tensors.safetensors"
    assert newest.stat().st_size == pytest.approx(checkpoints.bytes / 3, rel=0.05), "but for headers and buffers"
    size, embedding = (
        (written / "model" / "model.safetensors").stat().st_size,
        network.vocab_size * network.hidden_size * 4,
    )
    copies = 3  # in a checkpoint: the head, since an embedding's scale is folded, and two of an MTP head
    assert models.bytes <= size <= models.bytes + copies * embedding + 20_000


def test_a_finished_stage_does_nothing_more(finished):
    run, recipe, last = finished
    path = run / "stages" / "long" / "result.json"
    before = path.stat().st_mtime_ns
    (only,) = run_stage("long", run, recipe)
    assert only["result"] == last["long"]["result"] == json.loads(path.read_text())
    assert path.stat().st_mtime_ns == before


@pytest.mark.parametrize("stage", STAGES)
def test_stopping_anywhere_changes_no_bit(finished, before, stage):
    undisturbed, _, told = finished
    run, recipe = before(stage)
    section = getattr(recipe, stage)
    changed = recipe.model_copy(update={stage: section.model_copy(update={"checkpoint_seconds": 0.0})})
    for stop in (2, 6):
        for progress in run_stage(stage, run, changed):
            if progress["loss"] is not None and progress["step"] >= stop:
                break
    first, *_, last = run_stage(stage, run, recipe)
    assert first["step"] >= 4
    assert last["result"] == told[stage]["result"]
    assert stage_bits(run, stage) == stage_bits(undisturbed, stage)
    logged, expected = (
        [(row["step"], row["loss"]) for row in read_rows(root / "stages" / stage / "metrics.jsonl")]
        for root in (run, undisturbed)
    )
    assert logged[-1][0] == last["step"]
    assert logged == expected


@pytest.mark.slow
def test_two_threads_are_as_reproducible_as_one(finished, before):
    (run, recipe), bits = before("pretrain"), []
    recipe = recipe.model_copy(update={"compute": recipe.compute.model_copy(update={"threads": 2})})
    for stops in ((), (4,), (2, 8)):
        for stop in stops:
            for progress in run_stage("pretrain", run, recipe):
                if progress["step"] >= stop:
                    break
        list(run_stage("pretrain", run, recipe))
        bits.append(stage_bits(run, "pretrain"))
        shutil.rmtree(run / "stages" / "pretrain")
    assert bits[0] == bits[1] == bits[2]


def test_another_recipe_does_not_go_on_from_the_checkpoint(before):
    run, recipe = before("pretrain")
    section = recipe.pretrain.model_copy(update={"checkpoint_seconds": 0.0})
    for progress in run_stage("pretrain", run, recipe.model_copy(update={"pretrain": section})):
        if progress["step"] >= 2:
            break
    other = recipe.model_copy(update={"pretrain": recipe.pretrain.model_copy(update={"steps": 13})})
    with pytest.raises(CheckpointError, match="another recipe"):
        list(run_stage("pretrain", run, other))


def test_the_trunk_is_untouched_by_the_heads_own_steps(before):
    run, recipe = before("mtp")
    alone = recipe.model_copy(update={"mtp": recipe.mtp.model_copy(update={"joint_steps": 0})})
    list(run_stage("mtp", run, alone))
    old = load_hf(run / "stages" / "long" / "model").state_dict()
    new = load_hf(run / "stages" / "mtp" / "model").state_dict()
    assert {name for name in old if not torch.equal(old[name], new[name])} == {n for n in old if n.startswith("mtp.")}


def test_the_heads_loss_never_reaches_the_trunk_in_sft(finished, before):
    run, recipe = before("sft")
    without = recipe.model_copy(update={"sft": recipe.sft.model_copy(update={"draft_loss": 0.0})})
    states = []
    for number, one in enumerate((without, recipe)):
        list(run_stage("sft", run, one))
        states.append(load_hf(run / "stages" / "sft" / "model").state_dict())
        (run / "stages" / "sft").rename(run / f"sft-{number}")
    moved = {name for name in states[0] if not torch.equal(states[0][name], states[1][name])}
    assert moved
    assert all(name.startswith("mtp.") for name in moved)


def test_to_measure_on_the_way_changes_nothing_that_is_learnt(before):
    run, recipe = before("sft")
    models, courses = [], []
    for every in (0, 2):
        one = recipe.model_copy(update={"sft": recipe.sft.model_copy(update={"measure_every": every, "log_every": 2})})
        list(run_stage("sft", run, one))
        folder = run / "stages" / "sft"
        models.append((folder / "model" / "model.safetensors").read_bytes())
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        courses.append({row["step"]: row["held_out_loss"] for row in rows if "held_out_loss" in row})
        folder.rename(run / f"sft-{every}")
    assert models[0] == models[1]
    assert (list(courses[0]), list(courses[1])) == ([], [4, 8])
    begun = json.loads((run / "sft-2" / "before.json").read_text())["loss"]
    assert courses[1][8] < courses[1][4] < begun


def test_what_is_missing_is_named(before):
    run, recipe = before("pretrain")
    with pytest.raises(PretrainError, match="stage long starts from the model of stage pretrain"):
        list(run_stage("long", run, recipe))
    with pytest.raises(PretrainError, match="no supervised stage 'rl'"):
        list(run_stage("rl", run, recipe))
    short = recipe.pretrain.model_copy(update={"length": 16})
    with pytest.raises(PretrainError, match=r"documents of kind 'lookup' with at most 9 tokens"):
        list(run_stage("pretrain", run, recipe.model_copy(update={"pretrain": short})))


def test_a_stage_starts_from_the_one_before_it_whatever_is_left_out(before):
    run, recipe = before("long")
    shorter = recipe.model_copy(update={"stages": ["pretrain", "sft"]})
    result = list(run_stage("sft", run, shorter))[-1]["result"]
    assert result["inputs"]["model"] == file_digest(run / "stages" / "pretrain" / "model" / "model.safetensors")
    assert load_hf(run / "stages" / "sft" / "model").config.rope.scaling is None
