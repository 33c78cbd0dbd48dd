"""Each family computes what `transformers` computes, forward and backward, whatever its config.json says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.model.families.strategies import NAMES, configs, settings_of
from torch import Tensor, nn

from etude.model import ModelConfig, Transformer, compute_with, read_config
from etude.model.checkpoints.slots import slots_of
from etude.model.families import FAMILIES, write_config
from etude.model.families.published import Published
from etude.recipe.precision import PrecisionRecipe

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


def balance_coefficient(config: ModelConfig) -> float:
    return config.mixture.balance_loss if config.mixture and config.moe_layers else 0.0


def assert_equal_networks(ours: Transformer, theirs: Any, seed: int) -> None:
    """Logits, and the gradients of a weighted cross-entropy, with the balance loss where there is one."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 61, (2, 40), generator=generator)
    weights = torch.rand(2, 40, generator=generator)
    coefficient = balance_coefficient(ours.config)
    asked = {"output_router_logits": True} if coefficient else {}
    there = theirs(tokens, use_cache=False, **asked)
    here = ours(tokens, balance_loss=coefficient > 0)
    assert here.logits_btv.std() > 0.05, "the network says nothing, so equality proves nothing"
    torch.testing.assert_close(here.logits_btv, there.logits, rtol=1e-5, atol=1e-5)
    added = (coefficient * there.aux_loss, coefficient * here.balance_loss) if coefficient else (0.0, 0.0)
    for module, logits, extra in zip((theirs, ours), (there.logits, here.logits_btv), added, strict=True):
        module.zero_grad()
        losses = F.cross_entropy(logits.flatten(0, 1), tokens.roll(-1, 1).flatten(), reduction="none")
        ((losses * weights.flatten()).mean() + 100 * extra).backward()
    expected, found = dict(published(gradients(theirs))), gradients(ours)
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    for name, slot in slots_of(ours).items():
        if slot.parameter not in found:
            continue  # a router's bias, which no gradient moves
        gradient = found[slot.parameter] if slot.expert is None else found[slot.parameter][slot.expert]
        assert (gradient - expected[name]).abs().max() <= 1e-5 * largest, name


@pytest.mark.parametrize("examples", [12, pytest.param(200, marks=pytest.mark.soak)])
@pytest.mark.parametrize("family", NAMES)
def test_any_setting_computes_what_transformers_computes(family: str, examples: int) -> None:
    @settings(max_examples=examples)
    @given(data=configs(family), seed=st.integers(0, 1 << 20), invariant=st.booleans())
    def holds(data: dict[str, Any], seed: int, invariant: bool) -> None:
        theirs = theirs_of(data, seed)
        ours = ours_of(data, theirs)
        compute_with(ours, PrecisionRecipe(invariant=invariant))
        assert_equal_networks(ours, theirs, seed)

    holds()


@pytest.mark.parametrize("family", NAMES)
def test_settings_are_written_as_they_are_read(family: str) -> None:
    asked: set[str] = set()

    class Recorded(dict[str, Any]):
        def get(self, name: str, default: Any = None) -> Any:
            asked.add(name)
            return super().get(name, default)

        def __getitem__(self, name: str) -> Any:
            asked.add(name)
            return super().__getitem__(name)

    @given(data=configs(family))
    def holds(data: dict[str, Any]) -> None:
        config = read_config(data)
        assert write_config(config) == data
        assert read_config(FAMILIES[family].write(config) | {"model_type": family}) == config
        FAMILIES[family].read(Published(Recorded(data)))

    holds()
    assert asked <= settings_of(family), "a setting that no test varies"
