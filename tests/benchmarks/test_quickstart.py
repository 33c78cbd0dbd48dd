"""The quick start's row names the stages of which the plan was far from what happened."""

from __future__ import annotations

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
