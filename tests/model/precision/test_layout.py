"""Checkpoints of each format, written by us and as others publish them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.model.precision.oracles import bits_of, random_rows
from torch import Tensor

from etude.model import CannotQuantise, Transformer, UnsupportedCheckpoint, load_codes, load_hf, save_hf
from etude.model.precision import (
    FORMATS,
    MXFP8,
    NVFP4,
    STORED,
    BlockFP8,
    RowFP8,
    dequantise,
    quantise_block_fp8,
    quantise_nvfp4,
    split_quantised,
    stored_tensors,
)

EXPERT = "model.layers.1.mlp.experts.0.gate_proj.weight"
LAYOUT: dict[str, dict[str, tuple[torch.dtype, tuple[int, ...]]]] = {
    "mxfp8": {"": (torch.float8_e4m3fn, (32, 64)), "_scale": (torch.uint8, (32, 2))},
    "nvfp4": {
        "": (torch.uint8, (32, 32)),
        "_scale": (torch.float8_e4m3fn, (32, 4)),
        "_scale_2": (torch.float32, ()),
    },
    "fp8_block": {"": (torch.float8_e4m3fn, (32, 64)), "_scale_inv": (torch.float32, (1, 1))},
    "fp8_row": {"": (torch.float8_e4m3fn, (32, 64)), "_scale": (torch.float32, (32, 1))},
}
"""As published, for an expert of [32, 64]."""


@pytest.fixture
def network(model_of: Any) -> Transformer:
    """Of widths that every format takes."""
    model: Transformer = model_of(hidden_size=64, moe_intermediate_size=32).to(torch.bfloat16)
    return model


def experts_of(model: Transformer) -> dict[str, Tensor]:
    return {name: value for name, value in model.state_dict().items() if ".mlp.experts." in name}


@pytest.mark.parametrize("name", STORED)
def test_experts_come_back_as_the_format_rounds_them(name: str, network: Transformer, tmp_path: Path) -> None:
    save_hf(network, tmp_path, experts=name)
    again = load_hf(tmp_path)
    assert again.config == network.config
    before, after = network.state_dict(), again.state_dict()
    for key, value in after.items():
        assert value.dtype == before[key].dtype
        if ".mlp.experts." not in key:
            assert torch.equal(value, before[key])
        elif name == "nvfp4":
            assert not torch.equal(value, before[key])
            assert float((value - before[key]).float().norm() / before[key].float().norm()) < 0.12
        else:
            assert torch.equal(value, torch.stack([FORMATS[name].fake(one) for one in before[key]]))


@pytest.mark.parametrize("name", STORED)
def test_what_is_written_is_the_published_layout(name: str, network: Transformer, tmp_path: Path) -> None:
    save_hf(network, tmp_path, experts=name)
    tensors = load_file(tmp_path / "model.safetensors")
    found = {key.removeprefix(EXPERT): (t.dtype, tuple(t.shape)) for key, t in tensors.items() if EXPERT in key}
    assert found == LAYOUT[name]
    config = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    plain = config.get("ignore") or config["modules_to_not_convert"]
    assert {"lm_head", "model.layers.1.mlp.gate", "model.layers.1.mlp.shared_experts.up_proj"} <= {*plain, "lm_head"}
    assert not any(".mlp.experts." in module for module in plain)
    assert all(tensors[f"{module}.weight"].dtype == torch.bfloat16 for module in plain)


def test_each_config_says_what_its_readers_look_for(network: Transformer, tmp_path: Path) -> None:
    said = {}
    for name in STORED:
        save_hf(network, tmp_path / name, experts=name)
        config = json.loads((tmp_path / name / "config.json").read_text())["quantization_config"]
        said[name] = {key: config[key] for key in config if key not in ("ignore", "modules_to_not_convert")}
    assert said["mxfp8"] == {"quant_method": "modelopt", "quant_algo": "MXFP8", "group_size": 32}
    assert said["nvfp4"] == {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4", "group_size": 16}
    assert said["fp8_block"] == {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    }
    weights = said["fp8_row"]["config_groups"]["group_0"]["weights"]
    assert (said["fp8_row"]["quant_method"], said["fp8_row"]["format"]) == ("compressed-tensors", "float-quantized")
    assert (weights["num_bits"], weights["type"], weights["strategy"]) == (8, "float", "channel")


@pytest.mark.parametrize("name", STORED)
def test_codes_can_be_kept_and_are_written_again_bit_for_bit(name: str, network: Transformer, tmp_path: Path) -> None:
    save_hf(network, tmp_path, experts=name)
    tensors, codes = load_file(tmp_path / "model.safetensors"), load_codes(tmp_path)
    assert EXPERT in codes
    assert len(codes) == len([key for key in tensors if ".mlp.experts." in key and key.endswith(".weight")])
    for weight, q in codes.items():
        for key, value in stored_tensors(weight, q).items():
            assert torch.equal(bits_of(value), bits_of(tensors[key]))


def test_a_dtype_can_be_asked_for(network: Transformer, tmp_path: Path) -> None:
    save_hf(network, tmp_path, experts="fp8_row")
    exact, stored = experts_of(load_hf(tmp_path, torch.float32)), experts_of(load_hf(tmp_path))
    for name, value in exact.items():
        assert value.dtype == torch.float32
        assert torch.equal(value.bfloat16(), stored[name])
    assert any(not torch.equal(value.bfloat16().float(), value) for value in exact.values())


def test_deepseek_s_own_words_give_the_same_numbers() -> None:
    """Each block of 128 x 128, cut off at the edges, times its weight_scale_inv."""
    w = random_rows(1, 300, 208, torch.bfloat16)
    stored = stored_tensors("a.weight", quantise_block_fp8(w))
    codes, scales = stored["a.weight"].float(), stored["a.weight_scale_inv"]
    expected = torch.empty(300, 208)
    for m in range(3):
        for k in range(2):
            block = (slice(128 * m, 128 * (m + 1)), slice(128 * k, 128 * (k + 1)))
            expected[block] = codes[block] * scales[m, k]
    (q,) = split_quantised(stored)[1].values()
    assert torch.equal(dequantise(q, torch.float32), expected)


def test_layouts_that_others_write_are_read() -> None:
    w = random_rows(2, 256, 256, torch.bfloat16)
    four = quantise_nvfp4(w, outer=torch.tensor(2.0**-12))
    eight = quantise_block_fp8(w)
    row, tensor = torch.rand(256).bfloat16(), torch.tensor([0.25])
    power = torch.tensor([[120, 121], [122, 123]], dtype=torch.uint8)
    plain, read = split_quantised(
        {
            "ct4.weight_packed": four.codes,
            "ct4.weight_scale": four.scales,
            "ct4.weight_global_scale": 1 / four.outer.reshape(1),
            "ct4.input_global_scale": torch.ones(1),
            "ct8.weight": eight.codes,
            "ct8.weight_scale": eight.scales.bfloat16(),
            "e8m0.weight": eight.codes,
            "e8m0.weight_scale_inv": power.view(torch.float8_e8m0fnu),
            "channel.weight": eight.codes,
            "channel.weight_scale": row,
            "tensor.weight": eight.codes,
            "tensor.weight_scale": tensor,
            "tensor.input_scale": torch.ones(()),
            "norm.weight": row,
        }
    )
    assert list(plain) == ["norm.weight"]
    ct4, ct8, e8m0 = read["ct4.weight"], read["ct8.weight"], read["e8m0.weight"]
    assert isinstance(ct4, NVFP4)
    assert torch.equal(dequantise(ct4), dequantise(four))
    assert isinstance(ct8, BlockFP8)
    assert torch.equal(ct8.scales, eight.scales.bfloat16().float())
    assert isinstance(e8m0, BlockFP8)
    assert e8m0.scales.tolist() == [[2.0**-7, 2.0**-6], [2.0**-5, 2.0**-4]]
    for name, scales in (("channel", row.float()[:, None]), ("tensor", tensor.expand(256, 1))):
        q = read[f"{name}.weight"]
        assert isinstance(q, RowFP8)
        assert torch.equal(dequantise(q, torch.float32), eight.codes.float() * scales)


def test_codes_that_are_no_number_are_read_as_nan() -> None:
    """Ours write them with a NaN scale; others need not."""
    codes = torch.tensor([[0x7F, 0xFF, 0x38, 0xB8] * 8], dtype=torch.uint8).view(torch.float8_e4m3fn)
    back = dequantise(MXFP8(codes, torch.tensor([[127]], dtype=torch.uint8)), torch.float32)
    assert back[0, :4].isnan().tolist() == [True, True, False, False]
    assert back[0, 2:4].tolist() == [1.0, -1.0]


E4M3, CODES = torch.float8_e4m3fn, torch.zeros(256, 256, dtype=torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("damaged", "told"),
    [
        ({"a.weight": CODES, "a.weight_scale_inv": torch.ones(3, 2)}, "no known layout"),
        ({"a.weight": CODES, "a.weight_scale": torch.ones(255)}, "no known layout"),
        ({"a.weight": CODES, "a.weight_scale": torch.ones(256, 9, dtype=torch.uint8)}, "no known layout"),
        ({"a.weight": CODES.view(torch.uint8), "a.weight_scale": torch.ones(256, 16).to(E4M3)}, "no known layout"),
        ({"a.weight": torch.ones(256, 256), "a.weight_scale": torch.ones(256, 1)}, "no known layout"),
        ({"a.weight_scale": torch.ones(256, 1)}, "lacks its codes"),
        ({"a.weight": CODES}, "has no scales of a known format"),
        (
            {"a.weight_packed": torch.zeros(4, 4, dtype=torch.int32), "a.weight_scale": torch.ones(4, 3)},
            "no known layout",
        ),
    ],
)
def test_damage_is_named(damaged: dict[str, Tensor], told: str) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=told) as error:
        split_quantised(damaged)
    assert "a.weight" in str(error.value)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"quant_method": "gptq"}, "'gptq'; convert the checkpoint to bfloat16 first"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "only 'e4m3'"),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, r"only \[128, 128\]"),
    ],
)
def test_configs_outside_are_refused(config: dict[str, Any], told: str, network: Transformer, tmp_path: Path) -> None:
    save_hf(network, tmp_path)
    data = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**data, "quantization_config": config}))
    with pytest.raises(UnsupportedCheckpoint, match=told):
        load_hf(tmp_path)


def test_what_cannot_be_written_leaves_no_folder(model_of: Any, tmp_path: Path) -> None:
    with pytest.raises(CannotQuantise, match="blocks of 32"):
        save_hf(model_of(), tmp_path / "a", experts="mxfp8")
    with pytest.raises(CannotQuantise, match="checkpoints can be written in mxfp8, nvfp4"):
        save_hf(model_of(), tmp_path / "a", experts="fp8_tile")
    assert not (tmp_path / "a").exists()
    with pytest.raises(CannotQuantise, match="not per token"):
        stored_tensors("a.weight", quantise_nvfp4(torch.ones(4, 16)))
    with pytest.raises(CannotQuantise, match="not of 1 x 128"):
        stored_tensors("a.weight", quantise_block_fp8(torch.ones(4, 16), rows=1))


def test_a_checkpoint_in_which_everything_is_quantised_loads(network: Transformer, tmp_path: Path) -> None:
    """DeepSeek's own: attention, shared experts and dense layers are block FP8 as well."""
    save_hf(network, tmp_path)
    tensors, expected = load_file(tmp_path / "model.safetensors"), dict[str, Tensor]()
    stored: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if name.endswith("_proj.weight"):
            stored |= stored_tensors(name, quantise_block_fp8(value))
            expected[name] = FORMATS["fp8_block"].fake(value)
        else:
            stored[name] = value
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    data = json.loads((tmp_path / "config.json").read_text())
    config = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    (tmp_path / "config.json").write_text(json.dumps({**data, "quantization_config": config}))
    state = load_hf(tmp_path).state_dict()
    name = "layers.0.mlp.gate_proj.weight"
    assert torch.equal(state[name], expected[f"model.{name}"])
    assert torch.equal(
        state["layers.1.mlp.experts.gate_proj"][2], expected["model.layers.1.mlp.experts.2.gate_proj.weight"]
    )
