"""The supervised stages on a GPU learn what they learn on a CPU."""

from __future__ import annotations

import math
from typing import Any

import pytest

from etude.pretrain import run_stage

SLOW = [pytest.param(stage, marks=pytest.mark.slow) for stage in ("pretrain", "long", "mtp")]


@pytest.mark.parametrize("stage", ["sft", *SLOW])
def test_a_stage_learns_as_on_a_cpu(stage: str, finished: Any, before: Any, with_cuda: Any) -> None:
    run, recipe = before(stage)
    recipe = recipe.model_copy(update={"compute": recipe.compute.model_copy(update={"device": "cuda"})})
    with with_cuda():
        *_, last = run_stage(stage, run, recipe)
    expected, found = finished[2][stage]["result"], last["result"]
    assert found["compute"].startswith("cuda")
    for name, value in expected.items():
        if isinstance(value, float):
            assert math.isfinite(found[name])
            assert found[name] == pytest.approx(value, rel=0.02, abs=0.05), name
