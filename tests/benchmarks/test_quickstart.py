"""The quick start's row holds its stages against the plan from before it began, and names those far from it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import quickstart
from hypothesis import given
from hypothesis import strategies as st


def test_a_stage_is_far_at_more_than_thirty_percent_either_way() -> None:
    shares = {"tasks": 1.0, "corpus": 1.3, "pretrain": 1.31, "long": 0.77, "mtp": 0.76, "sft": 1 / 1.3}
    assert quickstart.far_from(shares) == ["pretrain", "mtp"]


@given(st.floats(0.01, 100))
def test_too_long_is_judged_as_too_short_is(share: float) -> None:
    there, back = (quickstart.far_from({"rl": value}) for value in (share, 1 / share))
    assert there == back or abs(max(share, 1 / share) - quickstart.NEAR) < 1e-9


def test_a_run_that_goes_on_is_held_against_the_plan_from_before_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = quickstart.ROOT / "recipes" / "tiny.toml"
    plans = iter([10.0, 99.0])
    monkeypatch.setattr(quickstart, "RUN", tmp_path / "runs" / "tiny")
    monkeypatch.setattr(quickstart, "PLAN", tmp_path / "runs" / "tiny-plan.json")
    monkeypatch.setattr(quickstart, "plan_run", lambda _: SimpleNamespace(stages=[("tasks", 0, next(plans))]))
    assert quickstart.plan_of(recipe) == {"tasks": 10.0}
    quickstart.RUN.mkdir()
    assert quickstart.plan_of(recipe) == {"tasks": 10.0}
    quickstart.PLAN.unlink()
    assert quickstart.plan_of(recipe) == {}, "begun without a plan"
