"""Equal to `transformers` on random checkpoints, written by us and read there, and the other way round."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.needs import transformers

from etude.model import Rope, Transformer, UnsupportedCheckpoint, Yarn, load_hf, read_config, save_hf
from etude.model.families import write_config
from etude.model.rope import LinearScaling, Llama3Scaling, Rotary, frequencies


def logits_there(folder: Path, tokens: torch.Tensor) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return model.eval()(tokens).logits


def logits_here(model: Transformer, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(tokens).logits_btv


def assert_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.std() > 0.05, "the network says nothing, so equality proves nothing"
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_transformers_reads_ours(shaped: Transformer, tokens_of: Any, tmp_path: Path) -> None:
    save_hf(shaped, tmp_path)
    tokens = tokens_of(3, 40)
    assert_close(logits_here(shaped, tokens), logits_there(tmp_path, tokens))


def test_we_read_transformers(shaped: Transformer, tokens_of: Any, tmp_path: Path) -> None:
    first, second = tmp_path / "ours", tmp_path / "theirs"
    save_hf(shaped, first)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(first, dtype=torch.float32)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.05)
    theirs.save_pretrained(second)
    tokens = tokens_of(2, 24)
    with torch.no_grad():
        expected = theirs.eval()(tokens).logits
    ours = load_hf(second, mtp_heads=0)
    assert ours.config.rope == shaped.config.rope
    assert_close(logits_here(ours, tokens), expected)
    third = tmp_path / "ours again"
    save_hf(ours, third)
    before, after = (load_file(folder / "model.safetensors") for folder in (second, third))
    before = {name: tensor for name, tensor in before.items() if tensor.numel()}
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    was, now = (json.loads((folder / "config.json").read_text()) for folder in (second, third))
    assert now == was | ({"num_nextn_predict_layers": 0} if shaped.mtp else {}), "every setting is kept"


SCALINGS: dict[str, Any] = {
    "linear": LinearScaling(3.0),
    "llama3": Llama3Scaling(8.0, 64, 1.0, 4.0),
    "yarn": Yarn(4.0, 64, mscale=0.0, mscale_all_dim=0.0),
    "yarn_not_truncated": Yarn(4.0, 64, truncate=False),
    "yarn_attention_factor": Yarn(4.0, 64, attention_factor=1.7),
}


@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
def test_rescaled_frequencies_are_the_published_ones(scaling: Any, config_of: Any) -> None:
    """They are what `transformers` computes from the settings that we write."""
    config = replace(config_of(), rope=Rope(1000.0, scaling, interleaved=True))
    data = write_config(config)
    assert read_config(data) == config
    kind = data["rope_scaling"].pop("type")
    there = transformers.LlamaConfig(
        head_dim=16, rope_parameters={"rope_theta": 1000.0, "rope_type": kind, **data["rope_scaling"]}
    )
    expected, scale = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[kind](there, "cpu")
    torch.testing.assert_close(frequencies(16, config.rope), expected)
    assert Rotary(config.rope, 16)(torch.zeros(1, 1)).cos.unique().item() == pytest.approx(scale)


def test_variants_of_the_published_network(model_of: Any, tokens_of: Any, tmp_path: Path) -> None:
    """Rotary pairs of halves, frequencies as in Llama 3.1, gates that are not normalised."""
    plain = model_of()
    rope, mixture = Rope(100.0, Llama3Scaling(8.0, 16, 1.0, 4.0)), replace(plain.config.mixture, normalise=False)
    model = Transformer(replace(plain.config, rope=rope, mixture=mixture))
    model.load_state_dict(plain.state_dict())
    save_hf(model, tmp_path)
    assert load_hf(tmp_path).config == model.config
    tokens = tokens_of(3, 40)
    assert_close(logits_here(model, tokens), logits_there(tmp_path, tokens))
    assert not torch.allclose(logits_here(plain, tokens), logits_here(model, tokens), atol=1e-2)


def test_shards_are_read_both_ways(model_of: Any, tokens_of: Any, tmp_path: Path) -> None:
    model, tokens = model_of(num_nextn_predict_layers=0), tokens_of(2, 24)
    save_hf(model, tmp_path / "ours", shard_bytes=40_000)
    assert_close(logits_here(model, tokens), logits_there(tmp_path / "ours", tokens))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float32)
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="40KB")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 1
    again = load_hf(tmp_path / "theirs").state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in model.state_dict().items())


def test_round_trip_is_exact(shaped: Transformer, tmp_path: Path) -> None:
    save_hf(shaped, tmp_path)
    again = load_hf(tmp_path)
    assert again.config == shaped.config
    before, after = shaped.state_dict(), again.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_embedding_scale_is_folded(
    model_of: Any, tokens_of: Any, tmp_path: Path, tied: bool, dtype: torch.dtype
) -> None:
    model = model_of(embedding_scale=math.sqrt(32), tie_word_embeddings=tied, initializer_range=0.1).to(dtype)
    save_hf(model, tmp_path)
    tokens = tokens_of(2, 24)
    if dtype == torch.float32:
        assert_close(logits_here(model, tokens), logits_there(tmp_path, tokens))
    again = load_hf(tmp_path)
    assert again.config == model.config
    assert again.embed_tokens.weight.dtype == dtype
    if tied:
        assert torch.equal(logits_here(again, tokens), logits_here(model, tokens))
    else:
        torch.testing.assert_close(logits_here(again, tokens), logits_here(model, tokens), rtol=1e-2, atol=5e-2)


def test_a_folded_checkpoint_that_others_trained_stays_untied(model_of: Any, tokens_of: Any, tmp_path: Path) -> None:
    save_hf(model_of(embedding_scale=3.0), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] += 0.1
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    again = load_hf(tmp_path)
    assert again.config.embedding_scale == 1
    assert not again.config.tie_word_embeddings
    tokens = tokens_of(2, 12)
    assert_close(logits_here(again, tokens), logits_there(tmp_path, tokens))


def test_casting_keeps_the_router_bias_in_fp32(model_of: Any, tmp_path: Path) -> None:
    model = model_of().to(torch.bfloat16)
    save_hf(model, tmp_path)
    again = load_hf(tmp_path)
    bias = again.state_dict()["layers.1.mlp.gate.e_score_correction_bias"]
    assert bias.dtype == torch.float32
    assert torch.equal(bias, model_of().state_dict()["layers.1.mlp.gate.e_score_correction_bias"])
    assert load_hf(tmp_path, torch.float32).embed_tokens.weight.dtype == torch.float32


def test_loading_takes_no_compiler_along(model_of: Any, tmp_path: Path) -> None:
    """torch loads its own, for a second or more, where a tensor without memory is filled by chance."""
    save_hf(model_of(), tmp_path)
    look = "import sys; from etude.model import load_hf; load_hf(sys.argv[1]); print('torch._dynamo' in sys.modules)"
    command = [sys.executable, "-c", look, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


def test_damage_is_named(model_of: Any, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=r"no config\.json"):
        load_hf(tmp_path)
    save_hf(model_of(), tmp_path)
    weights = tmp_path / "model.safetensors"
    tensors = load_file(weights)

    def store(changed: dict[str, torch.Tensor]) -> None:
        save_file(changed, weights, metadata={"format": "pt"})

    store({name: t for name, t in tensors.items() if name != "model.layers.1.mlp.experts.3.up_proj.weight"})
    with pytest.raises(UnsupportedCheckpoint, match=r"lacks the tensor .*experts\.3\.up_proj"):
        load_hf(tmp_path)
    store({name: t for name, t in tensors.items() if ".layers.3." not in name})
    with pytest.raises(UnsupportedCheckpoint, match="mtp_heads = 0"):
        load_hf(tmp_path)
    store({**tensors, "model.norm.weight": torch.ones(5)})
    with pytest.raises(UnsupportedCheckpoint, match="shape"):
        load_hf(tmp_path)
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(UnsupportedCheckpoint, match="damaged"):
        load_hf(tmp_path)


def test_config_json_is_the_published_form(model_of: Any, tmp_path: Path) -> None:
    save_hf(model_of(), tmp_path)
    data = json.loads((tmp_path / "config.json").read_text())
    assert data["architectures"] == ["DeepseekV3ForCausalLM"]
    assert data["topk_method"] == "noaux_tc"
    assert data["rope_scaling"] is None
    assert "etude" not in data
