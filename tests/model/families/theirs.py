"""Random networks of `transformers`, and the same ones as ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from etude.model import Transformer, read_config
from etude.model.checkpoints.slots import slots_of

transformers = pytest.importorskip("transformers")


def theirs_of(data: Mapping[str, Any], seed: int) -> Any:
    """A random network of `transformers`, whose norms and biases are not at their neutral start."""
    # A copy, because transformers writes into nested settings.
    settings = {name: value for name, value in deepcopy(dict(data)).items() if name != "model_type"}
    config = transformers.AutoConfig.for_model(data["model_type"], **settings)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in (*model.parameters(), *router_biases(model).values()):
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.add_(0.1 * noise)
            else:
                parameter.copy_(0.15 * noise)
    return model


def router_biases(model: nn.Module) -> dict[str, Tensor]:
    return {name: buffer for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias")}


def published(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Tensors of `transformers`, which stacks experts and joins two of their matrices, by their published names."""
    for name, tensor in tensors.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            stem, kind = name.rsplit(".", 1)
            for expert, matrix in enumerate(tensor):
                parts = matrix.chunk(2) if kind == "gate_up_proj" else (matrix,)
                for part, sort in zip(parts, kind.removesuffix("_proj").split("_"), strict=True):
                    yield f"{stem}.{expert}.{sort}_proj.weight", part
        else:
            yield name, tensor


def ours_of(data: Mapping[str, Any], theirs: Any) -> Transformer:
    model = Transformer(read_config(data))
    state, slots = model.state_dict(), slots_of(model)
    found = dict(published(dict(theirs.named_parameters()) | router_biases(theirs)))
    assert found.keys() == slots.keys()
    with torch.no_grad():
        for name, slot in slots.items():
            whole = state[slot.parameter]
            (whole if slot.expert is None else whole[slot.expert]).copy_(found[name])
    return model


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in module.named_parameters()}
