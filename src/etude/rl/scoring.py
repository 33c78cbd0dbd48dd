"""Turns groups into scored rows: rewards and advantages, with counts of what was dropped and masked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from etude.recipe.rl import RlRecipe
from etude.rl.advantage import Dropped, group_advantages
from etude.rl.batch import Row, TrainingGroup, TrainingMember, trace_rows
from etude.rl.reward import Reward, score


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    group: TrainingGroup
    rewards: tuple[Reward | None, ...]
    dropped: Dropped | None
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class ScoredBatch:
    groups: tuple[ScoredGroup, ...]

    @property
    def rows(self) -> list[Row]:
        return [row for group in self.groups for row in group.rows]

    def minibatches(self, count: int) -> list[list[Row]]:
        """Split the rows into `count` parts. All rows of a prompt stay in one part."""
        parts: list[list[Row]] = [[] for _ in range(count)]
        for place, group in enumerate(self.groups):
            parts[place * count // len(self.groups)].extend(group.rows)
        return parts

    def summary(self, version: int) -> dict[str, Any]:
        """Return statistics of the step's batch. `version` is the weight version that the step started from."""
        members = [m for g in self.groups for m in g.group.members]
        valid = [(m, r) for g in self.groups for m, r in zip(g.group.members, g.rewards, strict=True) if m and r]
        rewards = [r.total for _, r in valid]
        return {
            "reward": float(np.mean(rewards)) if rewards else 0.0,
            "solved": float(np.mean([m.verdict.passed for m, _ in valid])) if valid else 0.0,
            "masked": len(members) - len(valid),
            "masked_share": (len(members) - len(valid)) / len(members),
            "dropped_groups": sum(g.dropped is not None for g in self.groups),
            "dropped_no_spread": sum(g.dropped is Dropped.NO_SPREAD for g in self.groups),
            "dropped_none_solved": sum(g.dropped is Dropped.NONE_SOLVED for g in self.groups),
            "trained_tokens": sum(_trained_tokens(g, multi_version=False) for g in self.groups),
            "multi_version_tokens": sum(_trained_tokens(g, multi_version=True) for g in self.groups),
            "rollouts": len(valid),
            "with_summary": sum(m.trace.usage.summaries > 0 for m, _ in valid),
            "truncated": _mean([m.trace.stop.truncated for m, _ in valid]),
            "claimed_but_failed": _mean([m.trace.stop == "finished" and not m.verdict.passed for m, _ in valid]),
            "turns": _mean([m.trace.usage.turns for m, _ in valid]),
            "sampled_tokens": _mean([m.trace.usage.sampled_tokens for m, _ in valid]),
            "invalid_calls": _mean([m.trace.usage.invalid_calls for m, _ in valid]),
            "breaks": sum(m.trace.breaks for m, _ in valid),
            "staleness": _mean([version - m.trace.version_span()[0] for m, _ in valid]),
            "staleness_max": max((version - m.trace.version_span()[0] for m, _ in valid), default=0),
            "kl": _mean([r.kl for _, r in valid]),
            "shaping": {
                name: _mean([r.shaping[name] for _, r in valid]) for name in (valid[0][1].shaping if valid else ())
            },
        }


def score_groups(groups: Sequence[TrainingGroup], recipe: RlRecipe, kls: Mapping[str, float]) -> ScoredBatch:
    """Score all groups. `kls` maps trace ids to sums of log pi - log pi_ref, and is empty without a KL penalty."""
    return ScoredBatch(tuple(_score_group(group, recipe, kls) for group in sorted(groups, key=lambda g: g.index)))


def _score_group(group: TrainingGroup, recipe: RlRecipe, kls: Mapping[str, float]) -> ScoredGroup:
    rewards = tuple(_reward(member, recipe, kls) for member in group.members)
    result = group_advantages([r.total if r else None for r in rewards], min_spread=recipe.min_spread)
    if result.dropped is None and recipe.drop_unsolved and not any(r.solved for r in rewards if r):
        return ScoredGroup(group, rewards, Dropped.NONE_SOLVED, ())
    rows: list[Row] = []
    for member, advantage in zip(group.members, result.advantages, strict=True):
        if member is not None and advantage is not None:
            rows.extend(trace_rows(member.trace, advantage))
    return ScoredGroup(group, rewards, result.dropped, tuple(rows))


def _reward(member: TrainingMember | None, recipe: RlRecipe, kls: Mapping[str, float]) -> Reward | None:
    if member is None or not member.verdict.judgement.valid:
        return None
    return score(member.trace, member.verdict, recipe.reward, kl=kls.get(member.trace.id, 0.0))


def _trained_tokens(group: ScoredGroup, *, multi_version: bool) -> int:
    """Count the sampled tokens trained on; with `multi_version`, only of rollouts that saw a swap of weights."""
    if group.dropped is not None:
        return 0
    tokens = 0
    for member, reward in zip(group.group.members, group.rewards, strict=True):
        if member is not None and reward is not None:
            oldest, newest = member.trace.version_span()
            if newest > oldest or not multi_version:
                tokens += sum(int(segment.sampled.sum()) for segment in member.trace.segments if segment.trained)
    return tokens


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0
