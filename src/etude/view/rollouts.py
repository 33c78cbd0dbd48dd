"""Selects rollouts to show side by side: the same test task before and after the stage that follows SFT."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from etude.journal import read_rows
from etude.trace import StopCause, Trace
from etude.trace.file import read_traces
from etude.view.data import RunData

_LINES, _CHARACTERS, _STEPS = 14, 900, 60
"""Longest text of one step in lines and characters, and longest transcript in steps. Cuts are marked."""
_LOOKED_AT = 12
Verdicts = dict[str, dict[str, Any]]
"""Rows of an evaluation's results.jsonl, by task."""


@dataclass(frozen=True, slots=True)
class Step:
    role: str
    """The message's role, "call" for a tool call, or "break" where the agent continues from its own summary."""
    text: str


@dataclass(frozen=True, slots=True)
class Shown:
    title: str
    judgement: str
    reason: str
    effort: str
    steps: tuple[Step, ...]
    diff: str


@dataclass(frozen=True, slots=True)
class Pair:
    task: str
    before: Shown
    after: Shown


def pairs(data: RunData, count: int = 4) -> list[Pair]:
    """Choose up to `count` (at least 3) test tasks. Return each with a rollout before and one after RL or continued
    SFT.

    First come tasks that improved, then one that got worse, then one that failed both times, each group in the order of
    task names. Of the first _LOOKED_AT improvements, those whose diff has changed come before those with equal diffs,
    where the agent has only learned to end in time. If all three groups are empty, return tasks that passed both times.
    """
    before, after = (_verdicts(data, name) for name in data.ends)
    by_outcome = _by_outcome(before, after)
    rest = [*by_outcome.get((True, False), [])[:1], *by_outcome.get((False, False), [])[:1]]
    improved = _pairs(data, by_outcome.get((False, True), [])[:_LOOKED_AT], before, after)
    improved.sort(key=lambda pair: pair.before.diff == pair.after.diff)
    chosen = [*improved[: max(count - 2, 1)], *_pairs(data, rest, before, after)]
    return chosen or _pairs(data, by_outcome.get((True, True), [])[:count], before, after)


def told_of_pairs(data: RunData) -> str:
    """Return a sentence on how many test tasks passed only after the stage that follows SFT, and how many only before
    it. So readers can judge how typical the task shown to them is."""
    before, after = (_verdicts(data, name) for name in data.ends)
    by_outcome = _by_outcome(before, after)
    better, worse = (len(by_outcome.get(outcome, ())) for outcome in ((False, True), (True, False)))
    told = (
        f"Of the first attempts, one at each task, {better} failed before and passed after, {worse} the other way round"
    )
    return f"{told}; this is one of the {better}." if better else f"{told}."


def _by_outcome(before: Verdicts, after: Verdicts) -> dict[tuple[bool, bool], list[str]]:
    """Group tasks, in order of their names, by whether they passed in the evaluation `before` a stage of training and
    in the one `after` it."""
    found: dict[tuple[bool, bool], list[str]] = {}
    for task in sorted(before.keys() & after.keys()):
        outcome = before[task]["judgement"] == "pass", after[task]["judgement"] == "pass"
        found.setdefault(outcome, []).append(task)
    return found


def _pairs(data: RunData, tasks: Sequence[str], before: Verdicts, after: Verdicts) -> list[Pair]:
    first, second = (
        _traces(data, name, {found[task]["trace"] for task in tasks})
        for name, found in zip(data.ends, (before, after), strict=True)
    )
    return [
        Pair(task, _shown("before", before[task], first[task]), _shown("after", after[task], second[task]))
        for task in tasks
        if task in first and task in second
    ]


def _verdicts(data: RunData, name: str) -> Verdicts:
    """Return, for each task, the row of its sample with the lowest trace id. Greedy samples, and judgements other than
    pass and fail, are left out."""
    found: Verdicts = {}
    for row in read_rows(data.paths.evaluation(name) / "results.jsonl"):
        if not row["greedy"] and row["judgement"] in ("pass", "fail"):
            known = found.setdefault(row["task"], row)
            if row["trace"] < known["trace"]:
                found[row["task"]] = row
    return found


def _traces(data: RunData, name: str, wanted: set[str]) -> dict[str, Trace]:
    """Read the traces with the ids `wanted` from an evaluation, by task."""
    folder = data.paths.evaluation(name) / "traces"
    return {trace.task: trace for trace in read_traces(folder, only=wanted)} if wanted and folder.is_dir() else {}


def _shown(title: str, verdict: dict[str, Any], trace: Trace) -> Shown:
    steps: list[Step] = []
    for number, message in enumerate(trace.messages):
        steps.extend(_steps(message, first=number == 0))
    if len(steps) > _STEPS:
        steps = [*steps[:_STEPS], Step("break", f"{len(steps) - _STEPS} more")]
    usage = trace.usage
    effort = f"{usage.turns} turns, {usage.tool_calls} tool calls, {usage.sampled_tokens} tokens"
    reason = _ran_out(trace) if trace.stop.truncated else verdict.get("reason") or ""
    return Shown(title, verdict["judgement"], reason, effort, tuple(steps), trace.diff.strip("\n"))


def _ran_out(trace: Trace) -> str:
    usage = trace.usage
    spent = {
        StopCause.TURNS: f"of its {usage.turns} turns",
        StopCause.TOOL_CALLS: f"of tool calls, after {usage.tool_calls}",
        StopCause.TOKENS: f"of tokens, after {usage.sampled_tokens}",
        StopCause.CONTEXT: "of room in its context",
    }
    return f"ran out {spent.get(trace.stop, f'of its budget: {trace.stop}')}"


def _steps(message: dict[str, Any], *, first: bool) -> list[Step]:
    role = str(message.get("role", ""))
    if role == "system":
        return [] if first else [Step("break", "goes on from its own summary")]
    calls = message.get("tool_calls")
    steps = [Step("call", _call(call)) for call in calls] if isinstance(calls, list) else []
    text = _readable(str(message.get("content") or ""))
    return [Step(role, text), *steps] if text else steps


def _call(call: dict[str, Any]) -> str:
    """Return a call as text, such as `edit calc.py 3 return a + b`: as the model wrote it, if that is recorded."""
    if call.get("raw"):
        return _readable(str(call["raw"]))
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        arguments = {"": function["arguments"]}
    values = arguments.values() if isinstance(arguments, dict) else [arguments]
    return _readable(" ".join([str(function["name"]), *(str(value) for value in values)]))


def _readable(text: str) -> str:
    """Remove blank lines and control characters, and cut the text to _LINES lines and _CHARACTERS characters."""
    plain = "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)
    lines = [line.rstrip() for line in plain.strip("\n").splitlines() if line.strip()]
    shown = "\n".join(lines[:_LINES])[:_CHARACTERS]
    return f"{shown} \u2026" if len(lines) > _LINES or len(shown) == _CHARACTERS else shown
