"""INT4 weights as compressed-tensors packs them: read, and refused where they are anything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from etude.model import UnsupportedCheckpoint, checkpoint_doubts, load_codes, load_hf, save_hf, survey
from etude.model.precision import dequantise, split_quantised

WEIGHTS: dict[str, Any] = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 8}
EXPERT = "model.layers.1.mlp.experts.2.down_proj.weight"


def packed(codes: Tensor, scales: Tensor, name: str = "a.weight") -> dict[str, Tensor]:
    """Pack codes from -8 to 7 word by word, as the published description says."""
    rows: list[list[int]] = []
    for row in codes.tolist():
        row += [-8] * (-len(row) % 8)
        words = [
            sum((code + 8) << 4 * place for place, code in enumerate(row[at : at + 8])) for at in range(0, len(row), 8)
        ]
        rows.append([word - (1 << 32) if word >> 31 else word for word in words])
    return {
        f"{name}_packed": torch.tensor(rows, dtype=torch.int32),
        f"{name}_scale": scales,
        f"{name}_shape": torch.tensor(codes.shape),
    }


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 3), groups=st.integers(1, 3), group=st.integers(1, 20), seed=st.integers(0, 99), data=st.data()
)
def test_numbers_are_codes_times_scales(rows: int, groups: int, group: int, seed: int, data: st.DataObject) -> None:
    """Also widths that do not fill the last word, and codes that make a word negative."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(-8, 8, (rows, groups * group), generator=generator)
    scales = torch.randn(rows, groups, generator=generator).to(
        data.draw(st.sampled_from([torch.bfloat16, torch.float32]))
    )
    (q,) = split_quantised(packed(codes, scales))[1].values()
    exact = codes.double() * scales.double().repeat_interleave(group, 1)
    for dtype in (torch.float32, torch.bfloat16):
        assert torch.equal(dequantise(q, dtype), exact.to(torch.float32).to(dtype))


def _quantised(folder: Path, weights: dict[str, Any], **changes: Tensor) -> dict[str, Tensor]:
    """Replace the experts of a checkpoint by packed ones, and return their values."""
    tensors, expected = load_file(folder / "model.safetensors"), dict[str, Tensor]()
    for name in [name for name in tensors if ".mlp.experts." in name]:
        value = tensors.pop(name)
        scales = (value.unflatten(1, (-1, 8)).abs().amax(-1) / 7).bfloat16()
        codes = (value.unflatten(1, (-1, 8)) / scales.unsqueeze(-1)).round().clamp(-8, 7).int().flatten(1)
        tensors |= packed(codes, scales, name)
        expected[name] = (codes * scales.float().repeat_interleave(8, 1)).bfloat16()
    tensors |= {f"{EXPERT}_{part}": tensor for part, tensor in changes.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    described = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": group}}
    config |= {"quantization_config": described, "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))
    return expected


def test_packed_experts_are_read_on_load(model_of: Any, tmp_path: Path) -> None:
    save_hf(model_of(), tmp_path)
    expected = _quantised(tmp_path, WEIGHTS)
    assert survey(tmp_path).problems == ()
    assert survey(tmp_path).quantised == "compressed-tensors"
    assert load_codes(tmp_path).keys() == expected.keys()
    assert not checkpoint_doubts(tmp_path)
    stacked = load_hf(tmp_path).state_dict()["layers.1.mlp.experts.down_proj"]
    assert stacked.dtype == torch.bfloat16
    assert torch.equal(stacked[2], expected[EXPERT])


@pytest.mark.parametrize(
    ("weights", "changes", "told"),
    [
        ({**WEIGHTS, "num_bits": 8}, {}, "only symmetric ones of 4 bits"),
        ({**WEIGHTS, "symmetric": False}, {}, "only symmetric ones of 4 bits"),
        (
            WEIGHTS,
            {"zero_point": torch.zeros(32, 2)},
            r"down_proj\.weight_zero_point: of packed weights only symmetric",
        ),
        (
            WEIGHTS,
            {"packed": torch.zeros(32, 3, dtype=torch.int32)},
            r"has shape \(32, 3\), config.json says \(32, 2\)",
        ),
        (WEIGHTS, {"scale": torch.ones(32, 3)}, "is in no known layout"),
        (WEIGHTS, {"shape": torch.tensor([32, 24])}, "is in no known layout"),
    ],
)
def test_other_packings_are_refused(
    weights: dict[str, Any], changes: dict[str, Tensor], told: str, model_of: Any, tmp_path: Path
) -> None:
    save_hf(model_of(), tmp_path)
    _quantised(tmp_path, weights, **changes)
    with pytest.raises(UnsupportedCheckpoint, match=told):
        load_hf(tmp_path)
