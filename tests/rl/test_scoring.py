"""What is masked, dropped and trained on is counted, and the parts of a batch hold each group once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.rl.make import make_groups, tiny_model, tiny_recipe

from etude.rl.batch import TrainingGroup
from etude.rl.scoring import score_groups
from etude.tasks import Judgement, Verdict
from etude.trace import Break, BreakKind, SegmentKind

RECIPE = tiny_recipe()


@pytest.fixture(scope="module")
def groups() -> list[TrainingGroup]:
    model = tiny_model(RECIPE)
    return [group for step in range(3) for group in make_groups(RECIPE, model, step)]


def test_counts(groups) -> None:
    counts = score_groups(groups, RECIPE.rl, {}).summary(2)
    assert (counts["masked"], counts["rollouts"], counts["dropped_groups"]) == (3, 12, 3)
    assert counts["masked_share"] == pytest.approx(3 / 15)
    assert counts["solved"] == pytest.approx(3 / 12)
    assert counts["claimed_but_failed"] == pytest.approx(9 / 12)
    assert counts["staleness"] == pytest.approx(1.0)
    assert counts["staleness_max"] == 2
    assert counts["trained_tokens"] == 60
    assert counts["multi_version_tokens"] == 0


def test_an_error_of_ours_is_masked_never_a_zero(groups) -> None:
    group = groups[0]
    members = tuple(m and replace(m, verdict=Verdict(Judgement.ERROR, "lost")) for m in group.members)
    one_left = (group.members[0], *members[1:])
    batch = score_groups([replace(group, members=one_left)], RECIPE.rl, {})
    assert batch.rows == []
    assert batch.groups[0].dropped == "too_few_valid"
    assert batch.summary(0)["solved"] == 1.0


def test_a_group_that_solved_nothing_teaches_nothing_however_its_costs_differ(groups) -> None:
    group = groups[0]
    failed = [m and replace(m, verdict=Verdict(Judgement.FAIL, "no")) for m in group.members]
    assert failed[0] is not None
    usage = replace(failed[0].trace.usage, invalid_calls=5)
    failed[0] = replace(failed[0], trace=replace(failed[0].trace, usage=usage))
    batch = score_groups([replace(group, members=tuple(failed))], RECIPE.rl, {})
    assert batch.groups[0].dropped == "none_solved"
    assert batch.rows == []
    counts = batch.summary(0)
    assert (counts["dropped_groups"], counts["dropped_no_spread"], counts["dropped_none_solved"]) == (1, 0, 1)
    assert counts["trained_tokens"] == 0
    kept = score_groups(
        [replace(group, members=tuple(failed))], RECIPE.rl.model_copy(update={"drop_unsolved": False}), {}
    )
    assert kept.groups[0].dropped is None
    assert kept.rows


def test_advantages_are_centred_and_belong_to_every_sampled_token(groups) -> None:
    rows = score_groups(groups[:1], RECIPE.rl, {}).rows
    assert sum(row.advantage for row in rows) == pytest.approx(0)
    assert max(row.advantage for row in rows) > 0


def test_tokens_of_rollouts_that_saw_a_swap_are_counted_whole(groups) -> None:
    member = groups[0].members[0]
    segment = replace(member.trace.segments[0], versions=member.trace.segments[0].versions.copy())
    segment.versions[-3:] = 1
    aside = replace(segment, id=1, kind=SegmentKind.ASIDE, versions=segment.versions - 5)
    segment.breaks = (Break(BreakKind.EDITED, 0),)
    changed = replace(member, trace=replace(member.trace, segments=[segment, aside]))
    batch = score_groups([replace(groups[0], members=(changed, *groups[0].members[1:]))], RECIPE.rl, {})
    assert batch.summary(1)["multi_version_tokens"] == 10
    assert batch.summary(1)["trained_tokens"] == 20
    assert batch.summary(1)["staleness_max"] == 1
    assert batch.summary(1)["breaks"] == 1


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_minibatches_split_by_prompt(groups, parts) -> None:
    batch = score_groups(groups, RECIPE.rl, {})
    minibatches = batch.minibatches(parts)
    assert len(minibatches) == parts
    assert [r.tokens.tolist() for m in minibatches for r in m] == [r.tokens.tolist() for r in batch.rows]


def test_the_order_of_arrival_changes_nothing(groups) -> None:
    one, other = (score_groups(g, RECIPE.rl, {}).rows for g in (groups, groups[::-1]))
    assert all(
        np.array_equal(a.tokens, b.tokens) and a.advantage == b.advantage for a, b in zip(one, other, strict=True)
    )
