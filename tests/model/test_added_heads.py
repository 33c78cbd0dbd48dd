"""MTP heads that a run adds to a checkpoint: random by seed and name, kept, and passed over by other readers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.model.conftest import SHAPES

from etude.model import Transformer, UnsupportedCheckpoint, checkpoint_digest, load_hf, read_config, save_hf, survey

PUBLISH_NONE = ("qwen3", "qwen3_moe")
PUBLISH = ("default", "glm4_moe")


def headless(model_of: Any, shape: str) -> Transformer:
    return model_of(**{**SHAPES[shape], "num_nextn_predict_layers": 0})


def equal(one: Transformer, other: Transformer, beginning: str = "") -> bool:
    first, second = one.state_dict(), other.state_dict()
    return all(torch.equal(first[name], second[name]) for name in first if name.startswith(beginning))


@pytest.mark.parametrize("shape", [*PUBLISH_NONE, *PUBLISH])
def test_they_are_made_of_seed_and_name_beside_an_untouched_trunk(model_of: Any, shape: str, tmp_path: Path) -> None:
    model = headless(model_of, shape).bfloat16()
    save_hf(model, tmp_path / "found")
    one, other, more = (load_hf(tmp_path / "found", mtp_heads=n, seed=seed) for n, seed in ((1, 3), (1, 4), (2, 3)))
    assert equal(model, one)
    assert equal(one, more)
    assert not equal(one, other, "mtp.0.eh_proj")
    assert float(one.mtp[0].eh_proj.weight.detach().std()) == pytest.approx(model.config.initializer_range, rel=0.1)
    assert one.mtp[0].eh_proj.weight.dtype == torch.bfloat16
    assert all((p == 1).all() for name, p in one.mtp.named_parameters() if name.endswith("norm.weight"))
    save_hf(one, tmp_path / "kept")
    again, grown = (load_hf(tmp_path / "kept", mtp_heads=n, seed=3) for n in (None, 2))
    assert again.config == one.config
    assert again.state_dict().keys() == one.state_dict().keys()
    assert equal(one, again)
    assert equal(more, grown)
    seen = survey(tmp_path / "kept", mtp_heads=2)
    assert (seen.problems, seen.stored_heads, seen.config) == ((), 1, more.config)
    assert equal(model, load_hf(tmp_path / "kept", mtp_heads=0))


@pytest.mark.parametrize("shard_bytes", [5 << 30, 40_000])
@pytest.mark.parametrize("shape", PUBLISH_NONE)
def test_other_readers_pass_over_them(
    model_of: Any, tokens_of: Any, shape: str, shard_bytes: int, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    tokens, folder = tokens_of(2, 24), tmp_path / "kept"
    save_hf(headless(model_of, shape), tmp_path / "found")
    model = load_hf(tmp_path / "found", mtp_heads=1)
    save_hf(model, folder, shard_bytes=shard_bytes)
    assert json.loads((folder / "config.json").read_text())["etude"] == {"mtp_heads": 1}
    assert all(name.startswith("mtp.0.") for name in load_file(folder / "mtp.safetensors"))
    listed = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    assert not any("mtp" in name for name in (*listed, *listed.values()))
    with torch.no_grad():
        expected = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "found")(tokens).logits
        theirs, seen = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        assert torch.equal(theirs(tokens).logits, expected)
    assert not seen["unexpected_keys"]
    digest = checkpoint_digest(folder)
    with torch.no_grad():
        model.mtp[0].eh_proj.weight.add_(1)
    save_hf(model, folder, shard_bytes=shard_bytes)
    assert checkpoint_digest(folder) != digest
    save_hf(load_hf(folder, mtp_heads=0), folder, shard_bytes=shard_bytes)
    assert not (folder / "mtp.safetensors").exists()
    assert "etude" not in json.loads((folder / "config.json").read_text())


def test_what_is_wrong_with_them_is_named(model_of: Any, tmp_path: Path) -> None:
    save_hf(headless(model_of, "qwen3"), tmp_path)
    save_hf(load_hf(tmp_path, mtp_heads=1), tmp_path)
    described = json.loads((tmp_path / "config.json").read_text())
    for wrong in ("one", -1, 1.0, 1000):
        with pytest.raises(UnsupportedCheckpoint, match="number of MTP heads is"):
            read_config({**described, "etude": {"mtp_heads": wrong}})
    (tmp_path / "mtp.safetensors").unlink()
    with pytest.raises(UnsupportedCheckpoint, match=r"lacks .* mtp\.0\..*; to do without its MTP heads, set mtp_"):
        load_hf(tmp_path)
    assert not load_hf(tmp_path, mtp_heads=0).mtp
