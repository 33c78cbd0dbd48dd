"""Each family computes what `transformers` computes, forward and backward, whatever its config.json says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.model.families.strategies import NAMES, configs, settings_of
from tests.model.families.theirs import gradients, ours_of, published, theirs_of

from etude.model import ModelConfig, Transformer, compute_with, read_config
from etude.model.checkpoints.slots import slots_of
from etude.model.families import FAMILIES, write_config
from etude.model.families.published import Published
from etude.recipe.precision import PrecisionRecipe


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
