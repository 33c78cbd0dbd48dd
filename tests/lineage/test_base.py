"""A run begins with the model that its recipe names, and says in one line, before it starts, why it cannot."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.harness.parts import compact_format
from tests.lineage.contexts import open_context
from tests.pretrain.make import small_recipe
from tests.text.formats.tiny import merged_file
from tests.text.test_tiktoken_file import ALL, publish

from etude.lineage import LineageError, require_supported
from etude.lineage.base import adopt_base, find_base, network_of
from etude.lineage.stages import stages_of
from etude.model import (
    Transformer,
    adapters_of,
    begin_adapters,
    config_from_recipe,
    load_hf,
    merge_adapters,
    read_config,
    save_adapter,
    save_hf,
)
from etude.recipe import Recipe, RecipeError, load_recipe, save_recipe
from etude.recipe.lora import LoraRecipe
from etude.text import open_tokenizer

SMALL = small_recipe(Path("code")).model.model_dump(exclude={"from_", "weights", "embedding_scale"})


def recipe(folder: Path, model: dict[str, Any] | None = None, **sections: Any) -> Recipe:
    given = {"name": "r", "compute": {"device": "cpu", "dtype": "float32", "threads": 1}, "stages": ["sft", "rl"]}
    return Recipe.model_validate(given | {"model": {"from": str(folder), **(model or {})}, **sections})


def network(**changes: Any) -> Transformer:
    described = Recipe.model_validate({"name": "x", "model": SMALL | changes}).model
    return Transformer(config_from_recipe(described, 1024)).initialise(1)


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A checkpoint with a tokenizer of another maker, and no chat template."""
    folder = tmp_path / "published"
    save_hf(network(), folder)
    (folder / "tokenizer.json").write_text(json.dumps(merged_file()))
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "README.md").write_text("not for a run")
    return folder


def test_the_stage_base_takes_over_weights_and_tokenizer(published: Path, tmp_path: Path) -> None:
    begun = recipe(published, harness={"format": "auto", "profile": "full"})
    assert [stage.name for stage in stages_of(begun)][:2] == ["base", "tasks"]
    assert "corpus" not in [stage.name for stage in stages_of(begun)], "nothing reads one"
    context = open_context(tmp_path / "run", begun)
    result = asyncio.run(adopt_base(context))
    assert result["family"] == "deepseek_v3"
    assert result["format"]["name"]
    taken = load_hf(context.paths.model("base")).state_dict()
    assert all(torch.equal(value, taken[name]) for name, value in network().state_dict().items())
    assert {file.name for file in context.paths.model("base").iterdir()} == {
        file.name for file in published.iterdir() if file.name != "README.md"
    }
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (context.paths.root / name).read_bytes() == (published / name).read_bytes()
        assert name in stages_of(begun)[0].outputs, "another run that takes the stage over needs it too"
    shutil.rmtree(published)
    require_supported(begun, context.paths)
    assert network_of(begun, context.paths).hidden_size == 32, "the folder is needed once"


@pytest.mark.parametrize("own_tokenizer", [False, True])
def test_adapters_are_merged_into_their_base(published: Path, tmp_path: Path, own_tokenizer: bool) -> None:
    adapted = begin_adapters(load_hf(published), LoraRecipe(rank=2, targets=["attention", "experts"]))
    for adapter in adapters_of(adapted).values():
        torch.nn.init.normal_(adapter.b, std=0.1)
    save_adapter(adapted, tmp_path / "adapter", published, published if own_tokenizer else None)
    context = open_context(
        tmp_path / "run", recipe(tmp_path / "adapter", harness={"format": "auto", "profile": "full"})
    )
    require_supported(context.recipe, context.paths)
    asyncio.run(adopt_base(context))
    expected = merge_adapters(adapted).state_dict()
    taken = load_hf(context.paths.model("base")).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in taken.items())
    assert {file.name for file in context.paths.model("base").iterdir()} == {
        file.name for file in published.iterdir() if file.name != "README.md"
    }
    assert (context.paths.root / "tokenizer.json").read_bytes() == (published / "tokenizer.json").read_bytes()
    shutil.rmtree(published)
    again = open_context(tmp_path / "other", context.recipe)
    with pytest.raises(LineageError, match=r"model\.from: .* is not there: download it") as told:
        require_supported(again.recipe, again.paths)
    assert "\n" not in str(told.value)


def test_adapters_need_matrices_of_their_targets(published: Path) -> None:
    asked = {"rank": 4, "targets": ["attention", "experts"]}
    adamw = {stage: {"optimizer": {"name": "adamw"}} for stage in ("sft", "rl")}
    require_supported(recipe(published, **AUTO, **adamw, lora=asked))
    dense = recipe(Path("recipes/shapes/tiny-qwen3"), **AUTO, **adamw, lora=asked)
    with pytest.raises(LineageError, match=r'lora\.targets names "experts": the network of model\.from has no experts'):
        find_base(dense, shape_only=True)


def test_a_run_is_a_model_too(tmp_path: Path) -> None:
    run = tmp_path / "before"
    for stage in ("sft", "rl"):
        save_hf(network(), run / "stages" / stage / "model")
        compact_format().tokenizer.save(run / "stages" / stage / "model" / "tokenizer.json")
    save_recipe(Recipe.model_validate({"name": "before", "model": SMALL}), run / "recipe.toml")
    assert find_base(recipe(run)).folder == run / "stages" / "rl" / "model"
    assert find_base(recipe(run / "stages" / "sft" / "model")).folder == run / "stages" / "sft" / "model"


def test_only_the_shape_may_be_taken(published: Path, tmp_path: Path) -> None:
    (published / "model.safetensors").unlink()
    begun = recipe(published, {"weights": "random"}, stages=["pretrain", "sft"])
    assert [stage.name for stage in stages_of(begun)][:3] == ["base", "tasks", "corpus"]
    context = open_context(tmp_path / "run", begun)
    asyncio.run(adopt_base(context))
    assert load_hf(context.paths.model("base")).config == network().config
    assert not context.paths.tokenizer.exists(), "the run trains its own"


def without_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def another_family(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "mamba2"}))


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def without_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def with_a_shape_alone(folder: Path) -> None:
    for file in folder.iterdir():
        if file.name != "config.json":
            file.unlink()


def a_link_to_the_outside(folder: Path) -> None:
    (folder / "tokenizer_config.json").unlink()
    (folder / "tokenizer_config.json").symlink_to("/etc/hosts")


def nothing(folder: Path) -> None:
    pass


AUTO = {"harness": {"format": "auto"}}


@pytest.mark.parametrize(
    ("spoil", "sections", "says"),
    [
        (shutil.rmtree, AUTO, "model.from: .*published"),
        (without_config, AUTO, "model.from: .*config.json"),
        (another_family, AUTO, "model.from: .*mamba2.*known are"),
        (without_weights, AUTO, "model.from: .*safetensors"),
        (without_tokenizer, AUTO, "model.from: .*cannot read tokenizer"),
        (with_a_shape_alone, AUTO, r"model.from: .*published has only a config.json, .*model.weights = "),
        (a_link_to_the_outside, AUTO, "model.from: .*tokenizer_config.json is a link that leads out"),
        (nothing, {}, r'harness\.format = "compact" needs a tokenizer that Étude trained.*"auto"'),
        (nothing, AUTO | {"engine": {"context": 5000}}, r"engine\.context = 5000: the network of model.from has 1024"),
        (nothing, AUTO | {"precision": {"experts": "mxfp8", "emulate": True}}, "blocks of 32"),
    ],
)
def test_what_cannot_begin_is_one_line(
    published: Path, spoil: Callable[[Path], None], sections: dict[str, Any], says: str, tmp_path: Path
) -> None:
    spoil(published)
    context = open_context(tmp_path / "run", recipe(published, **sections))
    with pytest.raises(LineageError, match=says) as told:
        require_supported(context.recipe, context.paths)
    assert "\n" not in str(told.value)


def test_a_dry_run_needs_no_more_than_the_shape(published: Path) -> None:
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (published / name).unlink()
    require_supported(recipe(published, **AUTO))


def test_heads_that_are_not_there_are_not_trained(tmp_path: Path) -> None:
    save_hf(network(num_nextn_predict_layers=0), tmp_path / "headless")
    asked = recipe(tmp_path / "headless", {"weights": "random"}, stages=["mtp", "sft"])
    with pytest.raises(LineageError, match="no MTP heads to train; set model"):
        find_base(asked)


def test_a_folder_that_has_lost_its_heads_begins_without(published: Path, tmp_path: Path) -> None:
    save_hf(network(num_nextn_predict_layers=0), tmp_path / "headless")
    shutil.copyfile(tmp_path / "headless" / "model.safetensors", published / "model.safetensors")  # as transformers do
    with pytest.raises(LineageError, match=r"lacks .* tensors, .*to do without its MTP heads, set mtp_heads = 0"):
        find_base(recipe(published, **AUTO))
    begun = recipe(published, {"mtp_heads": 0}, **AUTO)
    context = open_context(tmp_path / "run", begun)
    assert network_of(begun).num_nextn_predict_layers == 0
    asyncio.run(adopt_base(context))
    taken = load_hf(context.paths.model("base"))
    assert taken.config.num_nextn_predict_layers == 0, "every later reader finds what it needs"
    assert all(
        torch.equal(value, taken.state_dict()[name])
        for name, value in network().state_dict().items()
        if name in taken.state_dict()
    )
    assert (context.paths.model("base") / "tokenizer.json").is_file()


def test_nothing_is_drafted_without_heads(tmp_path: Path) -> None:
    save_hf(network(num_nextn_predict_layers=0), tmp_path / "headless")
    asked = recipe(tmp_path / "headless", {"weights": "random"}, stages=["sft"], engine={"speculate": "always"})
    with pytest.raises(LineageError, match=r'engine\.speculate = "always": the network of model.from has no MTP heads'):
        find_base(asked)


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"precision": {"experts": "fp8_block", "emulate": True}}, r'precision\.experts = "fp8_block": .* no experts'),
        ({"precision": {"emulate": True, "also": ["attention"]}}, r'precision\.also = \["attention"\]: .* no experts'),
        ({"precision": {"kernels": "triton"}}, r'precision\.kernels = "triton": .* no experts'),
        ({"rl": {"replay": {"mode": "on"}}}, r'rl\.replay\.mode = "on": .* no experts'),
        ({"pretrain": {"balance_rate": 0.1}}, r"pretrain\.balance_rate = 0\.1: no router .* has biases"),
    ],
)
def test_what_is_about_experts_is_refused_where_there_are_none(sections: dict[str, Any], says: str) -> None:
    asked = recipe(Path("recipes/shapes/tiny-qwen3"), {"weights": "random"}, stages=["pretrain", "sft"], **sections)
    with pytest.raises(LineageError, match=says):
        find_base(asked, shape_only=True)


def test_the_recipe_of_a_dense_network_is_supported() -> None:
    dense = load_recipe(Path("recipes/tiny-qwen3.toml"), ["rl.replay.mode=off"])
    require_supported(dense)
    assert find_base(dense, shape_only=True).survey.config.family == "qwen3"


def test_a_new_network_cannot_be_described_beside(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text('name = "r"\nstages = ["rl"]\n[model]\nfrom = "x"\n')
    assert load_recipe(tmp_path / "r.toml").model.from_ == "x"
    with pytest.raises(RecipeError, match="hidden_size describes a new network, but from"):
        load_recipe(tmp_path / "r.toml", ["model.hidden_size=64"])
    with pytest.raises(RecipeError, match="mtp_heads goes with from"):
        load_recipe(tmp_path / "r.toml", ["model.mtp_heads=0", "model.from=", "stages=['pretrain']"])
    with pytest.raises(RecipeError, match="did you mean from"):
        load_recipe(tmp_path / "r.toml", ["model.form=64"])


def qwen3(folder: Path, **changes: Any) -> Path:
    shape = json.loads(Path("recipes/shapes/tiny-qwen3/config.json").read_text()) | {"num_hidden_layers": 1, **changes}
    save_hf(Transformer(read_config(shape)).initialise(1), folder)
    (folder / "tokenizer.json").write_text(json.dumps(merged_file()))
    return folder


@pytest.mark.parametrize("heads", [0, 1, 2])
def test_heads_are_added_and_dropped_as_the_recipe_says(heads: int, tmp_path: Path) -> None:
    folder = qwen3(tmp_path / "found")
    save_hf(load_hf(folder, mtp_heads=1, seed=5), folder, folder)
    begun = recipe(folder, {"mtp_heads": heads}, seed=5, stages=["mtp", "rl"] if heads else ["rl"], **AUTO)
    require_supported(begun)
    context = open_context(tmp_path / "run", begun)
    asyncio.run(adopt_base(context))
    taken = load_hf(context.paths.model("base"))
    assert network_of(begun) == network_of(begun, context.paths) == taken.config
    expected = load_hf(folder, mtp_heads=heads, seed=5).state_dict()
    assert expected.keys() == taken.state_dict().keys()
    assert all(torch.equal(tensor, taken.state_dict()[name]) for name, tensor in expected.items())
    assert (context.paths.root / "tokenizer.json").exists()
    untouched = (context.paths.model("base") / "model.safetensors").samefile(folder / "model.safetensors")
    assert untouched is (heads == 1), "linked where nothing changes"


def test_a_network_without_heads_is_given_some_by_the_recipe(tmp_path: Path) -> None:
    folder = qwen3(tmp_path / "found")
    with pytest.raises(LineageError, match=r"no MTP heads to train; set model\.mtp_heads"):
        find_base(recipe(folder, stages=["mtp", "rl"], **AUTO))
    assert find_base(recipe(folder, {"mtp_heads": 1}, stages=["mtp", "rl"], **AUTO)).survey.parameters.total > 0
    with pytest.raises(ValueError, match="mtp_heads goes with from"):
        Recipe.model_validate({"name": "x", "model": {"mtp_heads": 1}})


def test_the_long_stage_makes_room_for_a_longer_context(tmp_path: Path) -> None:
    folder = qwen3(tmp_path / "found")
    long = {"stages": ["long", "rl"], "long": {"factor": 4, "length": 4096}, "engine": {"context": 4096}}
    require_supported(recipe(folder, **long, **AUTO))
    with pytest.raises(LineageError, match=r"long\.length = 8192: the network of model\.from has 4096 positions"):
        require_supported(recipe(folder, **long | {"long": {"factor": 4, "length": 8192}}, **AUTO))
    phases = [{"steps": 1, "length": 2048, "factor": 2}, {"steps": 1, "length": 4096, "factor": 4}]
    require_supported(recipe(folder, **long | {"long": {"phases": phases}}, **AUTO))
    phases[0]["length"] = 3000
    with pytest.raises(LineageError, match=r"long\.phases: length = 3000: the network of model\.from has 2048 pos"):
        require_supported(recipe(folder, **long | {"long": {"phases": phases}}, **AUTO))
    scaled = qwen3(tmp_path / "scaled", rope_scaling={"type": "linear", "factor": 2.0})
    with pytest.raises(LineageError, match=r"long\.factor = 4: .*linearly scaled.*set it to 1"):
        require_supported(recipe(scaled, **long, **AUTO))


def test_a_tiktoken_file_becomes_the_tokenizer_of_the_run(tmp_path: Path) -> None:
    folder = qwen3(tmp_path / "found")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(LineageError, match=r"tokenizer\.json"):
        find_base(recipe(folder, stages=["rl"], **AUTO))
    names = ["[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"]
    names += [
        f"<|tool_call{part}|>" for part in ("s_section_begin", "s_section_end", "_begin", "_argument_begin", "_end")
    ]
    publish(folder, ALL, dict(enumerate(names, 256)))
    begun = recipe(folder, stages=["rl"], **AUTO)
    form = find_base(begun, shape_only=True).format
    assert form is not None
    assert form.name == "kimi-k2"
    context = open_context(tmp_path / "run", begun)
    asyncio.run(adopt_base(context))
    for place in (context.paths.root, context.paths.model("base")):
        assert (place / "tiktoken.model").exists()
        assert open_tokenizer(place / "tokenizer.json").special("<|im_end|>") == 257
