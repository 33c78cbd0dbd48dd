"""Kimi-K2.5: the text part equals that of `transformers`; everything around it leaves as it came."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tests.model.families.strategies import configs, kimi_k25
from tests.model.families.theirs import published, router_biases, theirs_of
from tests.needs import transformers

from etude.model import Transformer, UnsupportedCheckpoint, load_hf, read_config, save_hf, survey
from etude.model.checkpoints.slots import slots_of
from etude.model.families import write_config
from etude.model.precision.formats import dequantise
from etude.model.precision.int4 import Int4
from etude.model.precision.layout import stored_tensors

TOKENS = torch.randint(0, 61, (2, 24), generator=torch.Generator().manual_seed(0))


def publish(data: dict[str, Any], folder: Path, seed: int) -> Any:
    """Write a random model under its published names. `transformers` itself saves the text part under others."""
    model = theirs_of(data, seed)
    model.save_pretrained(folder)
    saved = {name.removeprefix("model."): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    tensors = {name: tensor for name, tensor in saved.items() if not name.startswith("language_model.")}
    tensors |= {name: tensor.detach().clone() for name, tensor in published(dict(model.named_parameters()))}
    tensors |= dict(published(router_biases(model)))
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
            data = kimi_k25(text, tied)
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
    data = kimi_k25(SMALL)
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
    data = kimi_k25(SMALL)
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
        read_config({**kimi_k25(SMALL), **change})
