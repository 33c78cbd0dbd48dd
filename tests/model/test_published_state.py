"""Versions have the names of published checkpoints, and a network takes them, and the names of older runs, in place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from etude.model import Transformer, save_hf
from etude.weights import DoesNotFit
from etude.weights.torch_bridge import from_state_dict, into_module


@pytest.fixture
def model(model_of: Callable[..., Transformer]) -> Transformer:
    return model_of(1)


def test_the_names_are_those_of_its_checkpoint(model: Transformer, tmp_path: Path) -> None:
    save_hf(model, tmp_path)
    stored: dict[str, torch.Tensor] = {}
    for file in tmp_path.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            stored |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    found = model.swapped_state()
    assert found.keys() <= stored.keys()
    assert all(torch.equal(tensor, stored[name]) for name, tensor in found.items())
    assert "model.layers.1.mlp.experts.3.up_proj.weight" in found


@pytest.mark.parametrize("names", ["published", "of the network"])
def test_a_version_is_taken_in_place(model: Transformer, names: str) -> None:
    other = Transformer(model.config).initialise(2)
    pointers = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    into_module(model, from_state_dict(other.swapped_state() if names == "published" else other.state_dict()))
    state = model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in other.state_dict().items())
    assert {name: tensor.data_ptr() for name, tensor in state.items()} == pointers


def test_a_lost_expert_is_named(model: Transformer) -> None:
    tensors = from_state_dict(model.swapped_state())
    del tensors["model.layers.1.mlp.experts.2.up_proj.weight"]
    with pytest.raises(DoesNotFit, match=r"the version lacks 'model.layers.1.mlp.experts.2.up_proj.weight'"):
        into_module(model, tensors)
