"""Each family computes what `transformers` computes, forward and backward, whatever its config.json says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.model.families.strategies import NAMES, configs, settings_of
from tests.model.families.theirs import differences, ours_of, theirs_of

from etude.model import compute_with, read_config
from etude.model.families import FAMILIES, write_config
from etude.model.families.published import Published
from etude.recipe.precision import PrecisionRecipe


@pytest.mark.parametrize("examples", [12, pytest.param(200, marks=pytest.mark.soak)])
@pytest.mark.parametrize("family", [*NAMES, "kimi_k25"])
def test_any_setting_computes_what_transformers_computes(family: str, examples: int) -> None:
    @settings(max_examples=examples)
    @given(data=configs(family), seed=st.integers(0, 1 << 20), invariant=st.booleans())
    def holds(data: dict[str, Any], seed: int, invariant: bool) -> None:
        theirs = theirs_of(data, seed)
        ours = ours_of(data, theirs)
        compute_with(ours, PrecisionRecipe(invariant=invariant))
        logits, gradients = differences(ours, theirs, seed)
        assert logits <= 1e-5
        assert not {name: share for name, share in gradients.items() if share > 1e-5}

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
