"""What a later stage could not do is refused before anything is trained: one line that names field, value and cure."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.lineage.contexts import open_context

from etude.cli.run import run_command
from etude.corpus.shards import Tokens, write_shards
from etude.journal import RunPaths
from etude.lineage import LineageError, LineageState, Stage, guard, require_supported, run_line
from etude.lineage.context import RunContext
from etude.lineage.prepare import require_long_documents
from etude.lineage.stages import stages_of
from etude.recipe import Recipe


def recipe_with(**sections: dict[str, object]) -> Recipe:
    compute = {"dtype": "float32", "threads": 1}
    return Recipe.model_validate({"name": "r", "compute": compute, **sections})


def _documents(lengths: list[int], first: int) -> list[Tokens]:
    return [Tokens(np.ones(length, dtype=np.uint32), "code", "folder") for length in lengths[first:]]


def context_with(root: Path, recipe: Recipe, lengths: dict[str, list[int]]) -> RunContext:
    """A run that has a corpus whose documents are this long."""
    splits = {name: partial(_documents, split) for name, split in lengths.items()}
    write_shards(RunPaths(root).corpus, splits, vocab_size=400, shard_tokens=10_000, provenance={})
    return open_context(root, recipe)


def test_the_default_recipe_is_supported() -> None:
    require_supported(recipe_with())


def test_no_plan_is_made_of_what_would_be_refused(tmp_path: Path) -> None:
    asked = ["compute.device=cuda", "precision.invariant=true"]
    with pytest.raises(LineageError, match=r"precision\.invariant = true"):
        run_command(Path("recipes/tiny.toml"), asked, tmp_path, None, dry_run=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_only_a_run_needs_the_gpu_that_its_recipe_names(tmp_path: Path) -> None:
    recipe = recipe_with(compute={"device": "cuda"})
    require_supported(recipe)  # as for a dry run
    with pytest.raises(LineageError, match="torch finds no CUDA device"):
        require_supported(recipe, RunPaths(tmp_path))


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        (
            {"compute": {"device": "cuda"}, "precision": {"invariant": True}},
            r"precision\.invariant = true: .* CPUs only",
        ),
        ({"compute": {"compile": True}}, r"compute\.compile = true compiles for GPUs"),
        ({"compute": {"device": "cuda"}, "rl": {"mode": "sync"}}, r"set compute\.deterministic = true"),
        (
            {"sft": {"kinds": ["op", "bool"]}},
            r"sft\.kinds: no train task has the kind 'bool'; expected some of op, cmp",
        ),
        ({"corpus": {"sources": []}}, r"corpus\.sources = \[\] and corpus\.folders = \[\]: .* nothing to pretrain on"),
        (
            {"corpus": {"sources": ["stdlib"]}},
            r"pretrain\.lookup_share = 0\.2: .* found \['stdlib'\]; add it, or set pretrain\.lookup_share = 0",
        ),
    ],
)
def test_what_the_recipe_alone_tells(sections: dict[str, object], said: str) -> None:
    with pytest.raises(LineageError, match=said) as caught:
        require_supported(recipe_with(**sections))
    assert "\n" not in str(caught.value)


def test_look_ups_are_not_missed_where_none_are_read() -> None:
    for pretrain in ({"lookup_share": 0.0}, {"steps": 0}):
        require_supported(recipe_with(corpus={"sources": ["stdlib"]}, pretrain=pretrain))


@pytest.mark.parametrize(
    ("train", "valid", "said"),
    [
        ([40, 90], [100], "the longest has 90 in its train split and 100 in its held-out split"),
        ([90, 500], [30, 65], "the longest has 500 in its train split and 65 in its held-out split"),
        ([90, 500], [], "the longest has 500 in its train split and 0 in its held-out split"),
        ([66], [66], ""),
        ([65], [66], "the longest has 65 in its train split"),
    ],
)
def test_a_corpus_without_long_documents(tmp_path: Path, train: list[int], valid: list[int], said: str) -> None:
    length = 64 if 100 not in valid else 128
    recipe = recipe_with(pretrain={"length": length}, long={"length": length * 4})
    context = context_with(tmp_path, recipe, {"train": train, "valid": valid})
    if not said:
        require_long_documents(context)
        return
    with pytest.raises(LineageError) as caught:
        require_long_documents(context)
    line = str(caught.value)
    assert line.startswith(
        f"pretrain.length = {length}: the long stage needs documents of more than {length + 1} tokens"
    )
    assert said in line
    assert "\n" not in line


def test_a_published_model_asks_for_documents_longer_than_its_positions(tmp_path: Path) -> None:
    """Only those are long for it, whatever the rows of pretraining; where the stage stays within them, half a row."""
    config = {"model_type": "qwen3", "vocab_size": 400, "hidden_size": 32, "num_hidden_layers": 1, "head_dim": 8}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 32, "rms_norm_eps": 1e-6}
    (tmp_path / "found").mkdir()
    (tmp_path / "found/config.json").write_text(json.dumps(config | {"max_position_embeddings": 100}))
    for number, (length, said) in enumerate(((400, "long.length = 400: .* more than 101 tokens"), (90, ""))):
        asked = {"model": {"from": str(tmp_path / "found")}, "stages": ["long", "sft"], "long": {"length": length}}
        context = context_with(tmp_path / str(number), recipe_with(**asked), {"train": [70, 120], "valid": [99]})
        with pytest.raises(LineageError, match=said) if said else nullcontext():
            require_long_documents(context)
    (long,) = (stage for stage in stages_of(context.recipe) if stage.name == "long")
    assert long.require is require_long_documents


def test_it_is_asked_before_pretraining_is_on_record_so_that_the_recipe_may_change(tmp_path: Path) -> None:
    calls = []

    async def work(context: RunContext) -> dict[str, int]:
        calls.append(context.recipe.pretrain.length)
        return {}

    pretrain = next(stage for stage in stages_of(recipe_with()) if stage.name == "pretrain")
    assert pretrain.require is require_long_documents
    stages = [Stage("corpus", "corpus", ("corpus",), (), work), dataclasses.replace(pretrain, run=work)]
    lengths = {"train": [90, 120], "valid": [100]}
    too_long = recipe_with(pretrain={"length": 128}, long={"length": 256})
    context = context_with(tmp_path, too_long, lengths)
    with pytest.raises(LineageError, match=r"pretrain\.length = 128"):
        asyncio.run(run_line(context, stages))
    assert list(LineageState.load(context.paths.lineage).stages) == ["corpus"]
    mended = context_with(tmp_path, recipe_with(pretrain={"length": 64}, long={"length": 256}), lengths)
    asyncio.run(run_line(mended, stages))
    assert calls == [128, 64]


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({}, "kv_lora_rank 512"),
        ({"compute": {"device": "cuda"}}, "compute.device"),
        ({"rl": {"mode": "sync"}}, "rl.mode"),
    ],
)
def test_what_vllm_cannot_serve_is_refused_before_anything_is_trained(
    sections: dict[str, object], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "_device_is_there", lambda recipe, needed: False)
    with pytest.raises(LineageError, match=named):
        require_supported(recipe_with(engine={"kind": "vllm"}, **sections))


def test_a_run_with_vllm_needs_its_interpreter(tmp_path: Path) -> None:
    shape = {"from": "recipes/shapes/tiny-qwen3", "weights": "random"}
    engine = {"kind": "vllm", "vllm": {"python": str(tmp_path / "nowhere")}}
    recipe = recipe_with(model=shape, engine=engine, stages=["pretrain", "sft", "rl"])
    require_supported(recipe)  # a dry run does not
    with pytest.raises(LineageError, match="make vllm"):
        require_supported(recipe, RunPaths(tmp_path))
