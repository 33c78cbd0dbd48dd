"""Adapters compute, train, merge and are stored as PEFT does it; without effect they change no bit."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tests.model.conftest import GROUPED, VOCAB
from tests.needs import peft, transformers
from torch import Tensor

from etude.model import (
    ModelError,
    Transformer,
    UnsupportedCheckpoint,
    adapter_state,
    adapters_of,
    begin_adapters,
    checkpoint_digest,
    checkpoint_faults,
    load_hf,
    merge_adapters,
    read_config,
    save_adapter,
    save_hf,
    survey,
)
from etude.model.checkpoints.slots import slots_of
from etude.recipe.lora import LoraRecipe

LATENT = {
    "model_type": "deepseek_v3",
    "q_lora_rank": 20,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.0,
    "num_nextn_predict_layers": 0,
}
MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 16}
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning", "ignore::FutureWarning")
CASES = {
    "llama": ({"model_type": "llama", "attention_bias": True}, ["attention", "mlp"]),
    "qwen3_moe": ({"model_type": "qwen3_moe", **MIXTURE}, ["attention", "experts"]),
    "deepseek_v3": (LATENT, ["attention"]),
    "deepseek_v3_experts": (LATENT, ["attention", "experts"]),
}


@pytest.fixture(params=CASES)
def ours(request: pytest.FixtureRequest, tmp_path: Path) -> Transformer:
    """A random network with random adapters; its base is stored in tmp_path/base, and they in tmp_path/adapter."""
    shape, targets = CASES[request.param]
    data = GROUPED | shape
    settings = {name: value for name, value in data.items() if name != "model_type"}
    theirs = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(data["model_type"], **settings), dtype=torch.float32
    )
    theirs.save_pretrained(tmp_path / "base")
    return stored(load_hf(tmp_path / "base"), targets, tmp_path)


def stored(base: Transformer, targets: list[str], place: Path, rank: int = 3) -> Transformer:
    model = begin_adapters(base, LoraRecipe(rank=rank, alpha=6.0, targets=targets), seed=1)
    scramble(model)
    save_adapter(model, place / "adapter", place / "base")
    return model


@torch.no_grad()
def scramble(model: Transformer, size: float = 0.3, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for adapter in adapters_of(model).values():
        adapter.b.copy_(torch.randn(adapter.b.shape, generator=generator) * size)


def tokens_of(count: int = 40, seed: int = 0) -> Tensor:
    return torch.randint(0, VOCAB, (2, count), generator=torch.Generator().manual_seed(seed))


def theirs_of(place: Path) -> Any:
    base = transformers.AutoModelForCausalLM.from_pretrained(place / "base", dtype=torch.float32)
    return peft.PeftModel.from_pretrained(base, place / "adapter", is_trainable=True)


def loss_of(logits: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), tokens.roll(-1, 1).flatten())


def test_peft_computes_the_same_and_so_do_its_gradients(ours: Transformer, tmp_path: Path) -> None:
    theirs, tokens = theirs_of(tmp_path), tokens_of()
    there, here = theirs(tokens).logits, ours(tokens).logits_btv
    assert (here - load_hf(tmp_path / "base")(tokens).logits_btv).abs().max() > 0.01, "the adapters do nothing"
    torch.testing.assert_close(here, there, rtol=1e-5, atol=1e-5)
    loss_of(there, tokens).backward()
    loss_of(here, tokens).backward()
    assert {name for name, p in ours.named_parameters() if p.grad is not None} == set(adapter_state(ours))
    expected = {name.split(".default.")[0]: p.grad for name, p in theirs.named_parameters() if p.grad is not None}
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    names = {slot.parameter: name for name, slot in slots_of_base(ours).items() if slot.expert in (None, 0)}
    for name, adapter in adapters_of(ours).items():
        for half, part, gradient in zip("AB", adapter.parameters(), of_theirs(names[name], expected), strict=True):
            assert part.grad is not None
            assert (part.grad - gradient).abs().max() <= 1e-5 * largest, (name, half)


def of_theirs(name: str, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The gradients of A and B of a published matrix (of expert 0 for those of all experts). PEFT joins the experts',
    and gate and up projection, whose B has a gradient also where it meets the other's A; that is no adapter of ours."""
    stack, _, leaf = name.removesuffix(".weight").rpartition(".experts.0.")
    if not stack:
        return tuple(tensors[f"base_model.model.{leaf}.lora_{half}"] for half in "AB")
    module = f"base_model.model.{stack}.experts{'' if leaf == 'down_proj' else '.base_layer'}"
    a = tensors[f"{module}.lora_A"].unflatten(0, (4, -1))
    b = tensors[f"{module}.lora_B"].unflatten(1, (-1, 4)).permute(2, 0, 1)
    if leaf == "down_proj":
        return a, b
    half = int(leaf == "up_proj")
    return a.chunk(2, 1)[half], b.chunk(2, 1)[half].chunk(2, 2)[half]


def slots_of_base(model: Transformer) -> Mapping[str, Any]:
    with torch.device("meta"):
        return slots_of(Transformer(model.config))


def test_the_merged_network_is_what_peft_merges(ours: Transformer, tmp_path: Path) -> None:
    theirs = theirs_of(tmp_path).merge_and_unload()
    theirs.save_pretrained(tmp_path / "theirs")
    tokens = tokens_of()
    adapted = ours(tokens).logits_btv
    merged = merge_adapters(ours)
    assert not adapters_of(merged)
    save_hf(merged, tmp_path / "merged")
    expected, found = load_hf(tmp_path / "theirs").state_dict(), load_hf(tmp_path / "merged").state_dict()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(merged(tokens).logits_btv, adapted, rtol=1e-4, atol=1e-4)


def test_what_peft_writes_is_read(ours: Transformer, tmp_path: Path) -> None:
    """PEFT joins the experts' matrices, with twice the rank where gate and up projection are one."""
    tokens = tokens_of()
    theirs_of(tmp_path).save_pretrained(tmp_path / "written")
    found = load_hf(tmp_path / "written")
    torch.testing.assert_close(found(tokens).logits_btv, ours(tokens).logits_btv, rtol=1e-5, atol=1e-5)
    save_adapter(found, tmp_path / "again", tmp_path / "base")
    again = load_hf(tmp_path / "again")
    assert {name: x.scale for name, x in adapters_of(again).items()} == {
        name: x.scale for name, x in adapters_of(found).items()
    }
    for name, tensor in adapter_state(found).items():
        assert torch.equal(adapter_state(again)[name], tensor), name


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("whole")
    shape = GROUPED | CASES["qwen3_moe"][0] | {"mlp_only_layers": [0]}
    save_hf(Transformer(read_config(shape)).initialise(0), place / "base")
    stored(load_hf(place / "base"), ["attention", "mlp", "experts"], place)
    return place


@pytest.fixture
def place(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    return tmp_path


def with_settings(**changes: Any) -> Callable[[Path], None]:
    def change(place: Path) -> None:
        file = place / "adapter/adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


def with_tensors(change: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], None]:
    def changed(place: Path) -> None:
        file = place / "adapter/adapter_model.safetensors"
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file)

    return changed


Q, EXPERT = "base_model.model.model.layers.0.self_attn.q_proj", "base_model.model.model.layers.1.mlp.experts.2.up_proj"


def renamed(before: str, after: str) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.update(
        {name.replace(before, after): tensors.pop(name) for name in list(tensors) if before in name}
    )


def without_expert(tensors: dict[str, Tensor]) -> None:
    for half in "AB":
        del tensors[f"{EXPERT}.lora_{half}.weight"]


def an_adapter_of_an_adapter(place: Path) -> None:
    shutil.copy(place / "adapter/adapter_config.json", place / "base")


def half_a_file(place: Path) -> None:
    file = place / "adapter/adapter_model.safetensors"
    os.truncate(file, file.stat().st_size // 2)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda place: shutil.rmtree(place / "base"), r"holds adapters of \.\./base, which is not there: download it"),
        (an_adapter_of_an_adapter, "holds adapters itself: merge those first"),
        (lambda place: (place / "adapter/adapter_model.safetensors").unlink(), "lacks adapter_model.safetensors"),
        (half_a_file, "adapter_model.safetensors"),
        (with_settings(peft_type="IA3"), "peft_type = 'IA3': only LORA is read"),
        (with_settings(use_dora=True), "use_dora = true, which is not implemented"),
        (with_settings(modules_to_save=["lm_head"]), 'modules_to_save = ."lm_head".'),
        (with_settings(r="8"), "r = '8'"),
        (with_settings(r=4), r"rank 3 for model\.layers.* and adapter_config\.json says 4"),
        (with_settings(alpha_pattern=[1]), "alpha_pattern is no table of numbers"),
        (with_settings(alpha_pattern={"(.*)*x": 2}), "only names with a few"),
        (
            with_tensors(lambda tensors: tensors.pop(f"{Q}.lora_B.weight")),
            "only one of the two matrices of model.layers",
        ),
        (with_tensors(renamed("q_proj", "r_proj")), r"adapts model\.layers\.0\.self_attn\.r_proj, which no adapter"),
        (with_tensors(renamed("layers.0.self_attn.q_proj", "embed_tokens")), r"adapts model\.embed_tokens, which no"),
        (with_tensors(renamed("lora_A", "lora_magnitude_vector")), "which is no matrix of a LoRA adapter"),
        (with_tensors(without_expert), r"adapts only some experts of layers\.1\.mlp\.experts\.up_proj, not expert 2"),
        (
            with_tensors(lambda tensors: tensors.update({f"{Q}.lora_A.weight": torch.zeros(3, 8)})),
            r"lora_A\.weight of shape \(3, 8\), the base needs \(3, 32\)",
        ),
        (
            with_tensors(lambda tensors: tensors[f"{Q}.lora_A.weight"].fill_(torch.nan)),
            r"q_proj\.lora_A\.weight has 96 of 96 numbers that are not finite",
        ),
    ],
)
def test_a_damaged_folder_is_one_line(place: Path, spoil: Callable[[Path], object], says: str) -> None:
    spoil(place)
    with pytest.raises(ModelError, match=says) as told:
        load_hf(place / "adapter")
    assert "\n" not in str(told.value)
    if "finite" in says:
        assert checkpoint_faults(place / "adapter")
        return
    with pytest.raises((UnsupportedCheckpoint, AssertionError), match=says):
        assert not (found := survey(place / "adapter").problems), found[0]


def test_a_folder_with_adapters_tells_what_a_checkpoint_tells(place: Path) -> None:
    found = survey(place / "adapter")
    assert (found.config, found.problems) == (survey(place / "base").config, ())
    before = checkpoint_digest(place / "adapter")
    with_tensors(lambda tensors: tensors[f"{Q}.lora_A.weight"].add_(1))(place)
    assert checkpoint_digest(place / "adapter") != before != checkpoint_digest(place / "base")
    with pytest.raises(ModelError, match="merge them first, or write them alone"):
        save_hf(load_hf(place / "adapter"), place / "new")
    assert not (place / "new").exists()


def test_other_scales_are_read_as_peft_means_them(place: Path) -> None:
    with_settings(use_rslora=True, alpha_pattern={r"layers\.0\.self_attn\.q_proj": 9.0})(place)
    scales = {name: adapter.scale for name, adapter in adapters_of(load_hf(place / "adapter")).items()}
    assert scales.pop("layers.0.self_attn.q_proj.weight") == pytest.approx(9 / 3**0.5)
    assert set(scales.values()) == {6 / 3**0.5}
