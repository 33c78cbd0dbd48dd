"""Kimi-K2.5: the text part equals that of `transformers`; everything around it leaves as it came."""

from __future__ import annotations

import json
import tempfile
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tests.model.families.strategies import configs
from tests.model.families.theirs import published, router_biases

from etude.model import Transformer, UnsupportedCheckpoint, load_hf, read_config, save_hf, survey
from etude.model.checkpoints.slots import slots_of
from etude.model.families import write_config
from etude.model.precision.formats import dequantise
from etude.model.precision.int4 import Int4
from etude.model.precision.layout import stored_tensors

transformers = pytest.importorskip("transformers")

VISION = {
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "hidden_size": 24,
    "intermediate_size": 16,
    "pos_emb_height": 4,
    "pos_emb_width": 4,
    "patch_size": 2,
}
TOKENS = torch.randint(0, 61, (2, 24), generator=torch.Generator().manual_seed(0))


def described(text: dict[str, Any], tied: bool = False) -> dict[str, Any]:
    text = {**text, "model_type": "kimi_k2", "torch_dtype": "float32"}
    return {
        "model_type": "kimi_k25",
        "architectures": ["KimiK25ForConditionalGeneration"],
        "text_config": text,
        "vision_config": VISION,
        "projection_hidden_size": 24,
        "tie_word_embeddings": tied,
        "media_placeholder_token_id": 7,
        "torch_dtype": "float32",
    }


def publish(data: dict[str, Any], folder: Path, seed: int) -> Any:
    """Write a random model under its published names. `transformers` itself saves the text part under others."""
    given = {name: value for name, value in deepcopy(data).items() if name != "model_type"}
    config = transformers.AutoConfig.for_model("kimi_k25", **given)
    model = transformers.Kimi_K25ForConditionalGeneration(config).float()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in (*model.parameters(), *router_biases(model).values()):
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(folder)
    saved = {name.removeprefix("model."): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    tensors = {name: tensor for name, tensor in saved.items() if not name.startswith("language_model.")}
    for name, tensor in published(dict(model.named_parameters()) | router_biases(model)):
        if name == "lm_head.weight":
            tensors[f"language_model.{name}"] = tensor.detach()
        elif name.startswith("model.language_model."):
            tensors[name.replace("model.language_model.", "language_model.model.")] = tensor.detach().clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(data))
    return model.eval()


def logits_there(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(TOKENS).logits


def logits_here(model: Transformer) -> torch.Tensor:
    with torch.no_grad():
        return model(TOKENS).logits_btv


def test_the_text_part_is_read_and_the_rest_is_carried() -> None:
    @settings(max_examples=3)
    @given(text=configs("deepseek_v3"), tied=st.booleans(), seed=st.integers(0, 1 << 20))
    def holds(text: dict[str, Any], tied: bool, seed: int) -> None:
        with tempfile.TemporaryDirectory() as place:
            there, here = Path(place, "there"), Path(place, "here")
            data = described(text, tied)
            theirs = publish(data, there, seed)
            (there / "preprocessor_config.json").write_text('{"image": 1}')
            (there / "modeling_kimi_k25.py").write_text("# code of the vision tower")
            expected, model = logits_there(theirs), load_hf(there)
            torch.testing.assert_close(logits_here(model), expected, rtol=1e-5, atol=1e-5)
            save_hf(model, here)
            before, after = (load_file(folder / "model.safetensors") for folder in (there, here))
            assert any(name.startswith("vision_tower.") for name in before)
            assert before.keys() == after.keys()
            assert all(torch.equal(before[name], after[name]) for name in before)
            assert json.loads((here / "config.json").read_text()) == data
            assert {file.name for file in here.iterdir()} == {file.name for file in there.iterdir()} - {
                "generation_config.json"  # travels with the tokenizer's files
            }
            again = transformers.Kimi_K25ForConditionalGeneration.from_pretrained(here, dtype=torch.float32)
            torch.testing.assert_close(logits_there(again.eval()), expected)

    holds()


SMALL = {
    "vocab_size": 61,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "intermediate_size": 40,
    "num_attention_heads": 6,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "q_lora_rank": 20,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
    "routed_scaling_factor": 2.5,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "rope_theta": 100.0,
}


def test_packed_experts_are_read_and_leave_plain(tmp_path: Path) -> None:
    data = described(SMALL)
    publish(data, tmp_path / "plain", 1)
    tensors, plain, generator = {}, {}, torch.Generator().manual_seed(2)
    for name, tensor in load_file(tmp_path / "plain" / "model.safetensors").items():
        if ".mlp.experts." in name:
            words = torch.randint(0, 1 << 31, (len(tensor), tensor.shape[1] // 8), generator=generator).int()
            packed = Int4(words, torch.rand(len(tensor), 2, generator=generator).bfloat16(), tensor.shape[1])
            tensors |= stored_tensors(name, packed)
            plain[name] = dequantise(packed, torch.float32)
        else:
            tensors[name] = plain[name] = tensor
    group = {"weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 24}}
    said = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": group}}
    packed_data = data | {"text_config": data["text_config"] | {"quantization_config": said}}
    (tmp_path / "config.json").write_text(json.dumps(packed_data))
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert survey(tmp_path).quantised == "compressed-tensors"
    save_hf(load_hf(tmp_path, torch.float32), tmp_path / "out")
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert written.keys() == plain.keys()
    assert all(torch.equal(written[name], plain[name].float()) for name in plain)
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == data, "it would promise packed experts"


def test_what_changes_is_said_where_it_stood() -> None:
    data = described(SMALL)
    longer = read_config(data).extended(4.0, 128)
    now = write_config(longer)
    assert read_config(now) == longer
    assert now.keys() == data.keys()
    changed = {name for name, value in now["text_config"].items() if data["text_config"].get(name) != value}
    assert "rope_scaling" in changed
    assert changed <= {"rope_scaling", "max_position_embeddings"}
    fresh = Transformer(read_config(write_config(read_config({**data, "tie_word_embeddings": True}))))
    assert "language_model.lm_head.weight" not in slots_of(fresh)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"text_config": None}, "lacks text_config"),
        ({"text_config": SMALL | {"model_type": "llama"}}, "model_type of text_config is 'llama'"),
    ],
)
def test_another_text_part_is_refused_by_name(change: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=says):
        read_config({**described(SMALL), **change})
