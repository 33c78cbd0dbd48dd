"""Group advantages: each reward minus the mean of the other valid rewards of its group.

The mean leaves out the member itself: with its own reward in the baseline, a group of m would give (m - 1) / m of the
policy gradient. The advantages are not divided by the standard deviation, which would blow up tiny differences between
equally correct rollouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Dropped(StrEnum):
    TOO_FEW_VALID = "too_few_valid"
    NO_SPREAD = "no_spread"
    NONE_SOLVED = "none_solved"


@dataclass(frozen=True, slots=True)
class GroupAdvantage:
    advantages: tuple[float | None, ...]
    """Advantage of each member of the group; None for a masked member, and for every member of a dropped group."""
    dropped: Dropped | None = None


def group_advantages(rewards: Sequence[float | None], *, min_spread: float) -> GroupAdvantage:
    """Compute a group's advantages. `rewards` has None for masked members. A group with fewer than two valid rewards,
    or whose valid rewards lie within `min_spread`, is dropped."""
    valid = [reward for reward in rewards if reward is not None]
    nothing: tuple[None, ...] = (None,) * len(rewards)
    if len(valid) < 2:
        return GroupAdvantage(nothing, Dropped.TOO_FEW_VALID)
    if max(valid) - min(valid) <= min_spread:
        return GroupAdvantage(nothing, Dropped.NO_SPREAD)
    total, others = sum(valid), len(valid) - 1
    return GroupAdvantage(tuple(None if reward is None else reward - (total - reward) / others for reward in rewards))
