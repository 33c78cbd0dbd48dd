"""Computes an evaluation's scores from its samples.

Samples that ended in an infrastructure error are counted, but left out of every score.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from etude.rollout.results import Sample
from etude.rollout.statistics import Estimate, estimate, pass_at_k
from etude.trace.trace import UNSAMPLED_VERSION


@dataclass(frozen=True, slots=True)
class GroupScore:
    tasks: int
    pass1: float
    greedy: float | None


@dataclass(frozen=True, slots=True)
class CellScore:
    """Scores of one cell, which is the set of tasks with the same relation to the training tasks (`tasks.Cell`)."""

    tasks: int
    pass1: Estimate | None
    passk: Estimate | None
    greedy: Estimate | None


@dataclass(frozen=True, slots=True)
class Summary:
    """Scores and counts of one evaluation, as written to its summary.json."""

    name: str
    split: str
    touch: int
    """Position of this evaluation, counted from 1, among the evaluations of this run that used the same split."""
    tasks: int
    samples: int
    errors: int
    """Number of samples that ended in an infrastructure error even after every retry."""
    k: int
    versions: tuple[int, int] | None
    """Oldest and newest weight version that sampled a token of a valid sample. They differ if the engine loaded new
    weights during the evaluation. None if no token was sampled by Étude's own engine."""
    pass1: Estimate | None
    """pass@1 of the samples at temperature 1."""
    passk: Estimate | None
    """pass@k over the tasks with at least k valid samples."""
    greedy: Estimate | None
    first_edit: Estimate | None
    """Share of samples at temperature 1 whose first edit alone passes. A sample without an edit counts as failed."""
    greedy_first_edit: Estimate | None
    truncated: float
    """Share of the valid samples that ran out of a budget."""
    valid_calls: float
    """Share of the tool calls of valid samples that were well formed."""
    summarised: float
    """Share of the valid samples with at least one self-summary."""
    turns: float
    edits: float
    sampled_tokens: float
    by_cell: dict[str, CellScore]
    """Scores by cell, which says whether training used a task's family, its kind of bug, both or neither. Empty if the
    tasks have no cells."""
    by_kind: dict[str, GroupScore]
    by_family: dict[str, GroupScore]
    compression: float = 0.0
    """Tokens of all summarised contexts divided by tokens of the contexts that replaced them; 0 without summaries."""
    rereads: float = 0.0
    """Files read again after a self-summary, per valid sample that has a self-summary."""
    empty_summaries: int = 0
    """Number of self-summaries without any text, over all valid samples."""
    cut_summaries: int = 0
    """Number of self-summaries that reached their token limit, over all valid samples."""


def summarise(
    samples: Sequence[Sample],
    *,
    name: str,
    split: str,
    touch: int,
    k: int,
    first_edits: bool,
    seed: int,
    spans: Iterable[tuple[int, int]] = (),
) -> Summary:
    """Compute the summary. `spans` has, per valid sample, the oldest and newest weight version that sampled a token."""
    known = [span for span in spans if UNSAMPLED_VERSION not in span]
    valid = [sample for sample in samples if sample.valid]
    drawn = [sample for sample in valid if not sample.greedy]
    greedy = [sample for sample in valid if sample.greedy]
    calls = sum(sample.tool_calls for sample in valid)
    celled: dict[str, list[Sample]] = defaultdict(list)
    for sample in valid:
        if sample.cell:
            celled[sample.cell].append(sample)

    def mean(values: Iterable[float]) -> float:
        found = list(values)
        return float(np.mean(found)) if found else 0.0

    return Summary(
        name=name,
        split=split,
        touch=touch,
        tasks=len({sample.task for sample in samples}),
        samples=len(samples),
        errors=len(samples) - len(valid),
        k=k,
        versions=(min(oldest for oldest, _ in known), max(newest for _, newest in known)) if known else None,
        pass1=estimate(list(scores(drawn).values()), seed),
        passk=estimate(_passk(drawn, k), seed) if k > 1 else None,
        greedy=estimate(list(scores(greedy).values()), seed),
        first_edit=estimate(list(scores(drawn, first_edit_passed).values()), seed) if first_edits else None,
        greedy_first_edit=estimate(list(scores(greedy, first_edit_passed).values()), seed) if first_edits else None,
        truncated=mean(sample.stop.truncated for sample in valid),
        valid_calls=1.0 - sum(sample.invalid_calls for sample in valid) / calls if calls else 0.0,
        summarised=mean(sample.summaries > 0 for sample in valid),
        turns=mean(sample.turns for sample in valid),
        edits=mean(sample.edits for sample in valid),
        sampled_tokens=mean(sample.sampled_tokens for sample in valid),
        by_cell={cell: _cell_score(celled[cell], k, seed) for cell in sorted(celled)},
        by_kind=_by(valid, lambda sample: sample.kind),
        by_family=_by(valid, lambda sample: sample.family),
        compression=_ratio(sum(s.context_before for s in valid), sum(s.context_after for s in valid)),
        rereads=mean(sample.rereads for sample in valid if sample.summaries),
        empty_summaries=sum(sample.empty_summaries for sample in valid),
        cut_summaries=sum(sample.cut_summaries for sample in valid),
    )


def _ratio(whole: int, part: int) -> float:
    return whole / part if part else 0.0


def _cell_score(samples: Sequence[Sample], k: int, seed: int) -> CellScore:
    drawn, greedy = [s for s in samples if not s.greedy], [s for s in samples if s.greedy]
    return CellScore(
        tasks=len({sample.task for sample in samples}),
        pass1=estimate(list(scores(drawn).values()), seed),
        passk=estimate(_passk(drawn, k), seed) if k > 1 else None,
        greedy=estimate(list(scores(greedy).values()), seed),
    )


def first_edit_passed(sample: Sample) -> bool:
    return bool(sample.first_edit)


def scores(samples: Iterable[Sample], passed: Callable[[Sample], bool] = lambda s: s.passed) -> dict[str, float]:
    """Map each task to the share of its samples for which `passed` holds."""
    by_task: dict[str, list[bool]] = defaultdict(list)
    for sample in samples:
        by_task[sample.task].append(passed(sample))
    return {task: float(np.mean(by_task[task])) for task in sorted(by_task)}


def _passk(samples: Iterable[Sample], k: int) -> list[float]:
    by_task: dict[str, list[bool]] = defaultdict(list)
    for sample in samples:
        by_task[sample.task].append(sample.passed)
    return [pass_at_k(len(found), sum(found), k) for _, found in sorted(by_task.items()) if len(found) >= k]


def _by(samples: Sequence[Sample], key: Callable[[Sample], str]) -> dict[str, GroupScore]:
    groups: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[key(sample)].append(sample)
    table: dict[str, GroupScore] = {}
    for name, members in sorted(groups.items()):
        drawn, greedy = scores(s for s in members if not s.greedy), scores(s for s in members if s.greedy)
        table[name] = GroupScore(
            tasks=len(drawn.keys() | greedy.keys()),
            pass1=float(np.mean(list(drawn.values()))) if drawn else 0.0,
            greedy=float(np.mean(list(greedy.values()))) if greedy else None,
        )
    return table
