"""Tables of the report: results and seconds of each stage, test scores by cell, and counters. A cell holds the test
tasks that are alike in two respects: whether training saw their family, and whether it saw their kind of bug."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from etude.tasks.task import Cell

Summary = dict[str, Any]


STAGES = {
    "base": "the model to begin with",
    "tasks": "making tasks",
    "corpus": "gathering code",
    "pretrain": "base model",
    "long": "longer context",
    "mtp": "draft head",
    "demonstrations": "recording solutions",
    "sft": "learning from solutions",
    "continued": "learning from more of them",
    "rl": "reinforcement learning",
    "evaluate": "the test",
}
"""Readable names of the stages, in the order in which they run."""


@dataclass(frozen=True, slots=True)
class Line:
    stage: str
    shows: str
    before: str
    after: str
    seconds: float | None
    means: str = ""
    """Explanation of the measurement for readers who do not know its terms; may be empty."""


def closing_table(summary: Summary) -> list[Line]:
    """Return the lines of the table that `etude run` prints at the end: one or more per stage that has run."""
    seconds = summary.get("seconds", {})
    end = last_trained(summary)
    return [
        Line(stage, shows, before, after, None if number else seconds.get(stage), means)
        for stage in STAGES
        for number, (shows, before, after, means) in enumerate(
            [*_of_stage(summary, stage), *(_of_end(summary, end) if stage == end else [])]
        )
    ]


Shown = tuple[str, str, str, str]
"""A measurement as (what is shown, value before, value after, explanation)."""


def _of_stage(summary: Summary, stage: str) -> list[Shown]:
    if stage in _WORK:
        return [(_WORK[stage], "", "", "")] if stage in summary.get("seconds", {}) else []
    return [
        (shows, _at(summary, f"{stage}.{before}", show) or "", value, means)
        for place, before, after, shows, means, show in _MEASURED
        if place == stage and (value := _at(summary, f"{stage}.{after}", show)) is not None
    ]


def _of_end(summary: Summary, end: str) -> list[Shown]:
    k = summary.get(end, {}).get("k")
    return [
        (shows.format(k=k), _at(summary, f"{end}.{key}_before", _percent) or "", value, means.format(k=k))
        for key, shows, means in _TESTED
        if (value := _at(summary, f"{end}.{key}_after", _percent)) is not None
    ]


def minutes(summary: Summary) -> float:
    """Return the minutes that all stages took, in all sessions of the run."""
    seconds: dict[str, float] = summary.get("seconds", {})
    return sum(seconds.values()) / 60


def measured(summary: Summary) -> list[str]:
    """Return sentences that say how the test result was measured; none before the test has run."""
    end = last_trained(summary)
    found = summary.get(end, {})
    if not {"tasks", "k", "test_evaluations"} <= found.keys():
        return []
    greedy = ", and a greedy one" if "greedy_before" in found else ""
    shapes = "; where the family was seen, others of the same shape were, with other numbers in them"
    told = [
        f"{found['tasks']} test tasks, {found['k']} attempts at each at temperature 1{greedy}, under the same limits "
        "before and after. None of their functions, whatever its names, was in anything trained on"
        f"{shapes if summary.get('cells') else ''}.",
        "Whether an attempt passes is for a grader to say: in a fresh box it applies the agent's change, and nothing "
        "else, to an untouched copy, and runs tests that the agent never saw.",
        f"This run took the test {found['test_evaluations']} times, when training was over. How often other runs, with "
        "which a recipe may have been chosen, looked at the same tasks is not counted here.",
    ]
    if end == "rl":
        told.append(
            "One run of one seed cannot say whether as much more learning from solutions would have done as well as "
            "RL. That is measured apart, on three seeds: the claim spine, in docs/claims.md and in the README's table."
        )
    return told


def last_trained(summary: Summary) -> str:
    """Return the training stage whose effect the test shows: the last one."""
    tested = [stage for stage in STAGES if "test_evaluations" in summary.get(stage, {})]
    return tested[-1] if tested else "continued" if "continued" in summary else "rl"


@dataclass(frozen=True, slots=True)
class Score:
    """One score of a cell of test tasks, before and after the last training stage."""

    before: str
    after: str
    intervals: tuple[str, str]
    fell: bool


@dataclass(frozen=True, slots=True)
class CellLine:
    family: str
    kind: str
    """Whether training saw the kind of bug of this cell's tasks: "seen" or "unseen". `family` says the same of their
    family."""
    tasks: int
    scores: tuple[Score, ...]
    """The cell's scores, in the order of `cell_scores`."""


def cell_scores(summary: Summary) -> list[tuple[str, str]]:
    """Return the key and the column title of each score that is shown for a cell of test tasks."""
    k = summary.get(last_trained(summary), {}).get("k")
    return [("pass1", "pass@1"), ("passk", f"pass@{k}"), ("greedy", "greedy")]


def cell_table(summary: Summary) -> list[CellLine]:
    found = summary.get("cells", {})
    return [
        CellLine(
            met(cell.family_seen),
            met(cell.kind_seen),
            found[cell]["tasks"],
            tuple(_score(found[cell], key) for key, _ in cell_scores(summary)),
        )
        for cell in Cell
        if cell in found
    ]


def _score(cell: Summary, key: str) -> Score:
    before, after = cell.get(f"{key}_before"), cell.get(f"{key}_after")
    fell = before is not None and after is not None and after < before
    shown = [_at(cell, f"{key}_{when}", _percent) or "" for when in ("before", "after")]
    intervals = (_interval(cell.get(f"{key}_before_interval")), _interval(cell.get(f"{key}_after_interval")))
    return Score(shown[0], shown[1], intervals, fell)


def _interval(found: Sequence[float] | None) -> str:
    return f"{100 * found[0]:.0f}\u2013{100 * found[1]:.0f}" if found else ""


def met(seen: bool) -> str:
    return "seen" if seen else "unseen"


def counters(summary: Summary) -> list[tuple[str, str]]:
    """Return counters that show whether the mechanisms of the run were at work, as pairs (description, value)."""
    whole = "{:,.0f}".format
    rows: tuple[tuple[str, str, Callable[[float], str]], ...] = (
        ("tokens trained on by RL", "rl.trained_tokens", whole),
        ("of these, sampled in a rollout that saw a swap of weights", "rl.multi_version_share", _percent),
        ("rollouts with a self-summary", "rl.summary_share", _percent),
        ("versions between sampling and training, on average", "rl.staleness_mean", "{:.2f}".format),
        ("groups that taught nothing and were dropped", "rl.dropped_groups", whole),
        ("rollouts that infrastructure failed (sampled again)", "rl.infra_errors", whole),
        ("rollouts masked because that kept happening", "rl.masked", whole),
        ("tokens replayed with an expert that the trainer would not have chosen", "replay.overridden", whole),
        ("tokens of which an expert was refused as implausible", "replay.refused", whole),
        ("mismatch with the engine (p99 of log-probs), without replay", "replay.p99_off", "{:.4f}".format),
        ("the same with replay and its filter", "replay.p99_filter", "{:.4f}".format),
        ("drafted tokens accepted by the engine", "engine.accepted_per_draft", _percent),
        ("drafts that would be accepted in RL's last steps", "rl.draft_accepted_last", _percent),
        ("versions of the weights published as deltas", "weights.deltas", whole),
        ("size of a delta, as a share of the whole", "weights.delta_share_mean", _percent),
        ("tokens sampled per second by the engine", "engine.tokens_per_second", whole),
    )
    return [(what, shown) for what, place, show in rows if (shown := _at(summary, place, show)) is not None]


def _number(value: float) -> str:
    return f"{value:.3f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def _at(summary: Summary, place: str, show: Callable[[float], str] = _number) -> str | None:
    value: Any = summary
    for key in place.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return show(value) if isinstance(value, int | float) else None


_WORK = {
    "base": "model taken over",
    "tasks": "tasks made and checked",
    "corpus": "code and documents gathered",
    "demonstrations": "solved tasks written down",
    "evaluate": "all attempts at test tasks",
}
"""What each stage without a before and after measurement did."""
_NATS = "surprise per token, in nats: the lower, the better it foresees"
_MEASURED: tuple[tuple[str, str, str, str, str, Callable[[float], str]], ...] = (
    ("pretrain", "loss_before", "loss_after", "loss on code kept aside", _NATS, _number),
    (
        "long",
        "late_loss_before",
        "late_loss_after",
        "loss far into long documents",
        "the same, at positions beyond the length that the base model was trained on",
        _number,
    ),
    (
        "mtp",
        "accepted_per_draft_before",
        "accepted_per_draft",
        "drafted tokens accepted",
        "a small head guesses one token further; where the network then says the same, a step is saved",
        _percent,
    ),
    (
        "sft",
        "loss_before",
        "loss_after",
        "loss on solutions kept aside",
        "an oracle solves tasks by the agent's own tools; the agent learns to act like it",
        _number,
    ),
    ("sft", "", "valid_calls", "tool calls that are valid", "", _percent),
)
"""Measurements: stage, key of the value before, key of the value after, what it shows, explanation, number format."""
_TESTED = (
    ("pass1", "test tasks solved, pass@1", "by one attempt, which draws its tokens at random (temperature 1)"),
    ("passk", "test tasks solved, pass@{k}", "by one at least of {k} such attempts"),
    ("greedy", "test tasks solved, greedy", "by one attempt that always takes the likeliest token"),
    ("first_edit", "solved by the first edit", "by what the first edit of an attempt (pass@1) makes of it"),
    ("one_edit", "solved, one edit allowed", ""),
)
"""Scores of the test evaluation, as (key, what it shows, explanation)."""


def plain(lines: Sequence[Line]) -> str:
    """Return the lines of `closing_table` as plain text for logs and pipes."""
    rows = [("stage", "what it shows", "before", "after", "seconds")]
    rows += [(x.stage, x.shows, x.before, x.after, "" if x.seconds is None else f"{x.seconds:.0f}") for x in lines]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
