"""Measurements of a step with more tokens than torch's quantile takes."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from tests.rl.make import tiny_recipe

from etude.rl import measure
from etude.rl.measure import StepMeter, probe_replay


@pytest.fixture(scope="module")
def many() -> torch.Tensor:
    return torch.linspace(0, 1, 2**24 + 1)


def test_a_step_of_any_size_has_a_p99(many) -> None:
    meter = StepMeter(deltas=[many], entropies=[torch.zeros(1)], updates=[{"grad_norm": 0.0, "lr": 0.0}])
    assert meter.summary()["mismatch_p99"] == pytest.approx(0.99, abs=1e-6)


def test_a_probe_of_any_size_has_a_p99(many, monkeypatch) -> None:
    def deltas(_model: Any, _part: Any, mode: str, _recipe: Any) -> tuple[torch.Tensor, torch.Tensor]:
        found = many if mode == "filter" else many[:101]
        return found, torch.zeros(1, dtype=torch.int32).expand(len(found))

    monkeypatch.setattr(measure, "microbatches", lambda rows, tokens: ["all rows"])
    monkeypatch.setattr(measure, "_deltas", deltas)
    assert probe_replay(cast(Any, None), [], 0, tiny_recipe().rl)["p99_filter"] == pytest.approx(0.99, abs=1e-6)
