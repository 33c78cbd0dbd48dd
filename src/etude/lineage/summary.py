"""Writes summary.json: the numbers of a run, collected from the files of the stages it has reached."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from etude.journal import RunPaths, read_metrics, waits, write_atomically
from etude.lineage.state import LineageState

_SUPERVISED = {
    "pretrain": ("loss_before", "loss_after"),
    "long": ("late_loss_before", "late_loss_after"),
    "mtp": ("accepted_per_draft_before", "accepted_per_draft", "top1"),
    "sft": ("loss_before", "loss_after"),
}


def write_summary(paths: RunPaths) -> dict[str, Any]:
    summary = summarise(paths)
    write_atomically(paths.summary, (json.dumps(summary, indent=1) + "\n").encode())
    return summary


def summarise(paths: RunPaths) -> dict[str, Any]:
    state = LineageState.load(paths.lineage)
    results = {name: record.result for name, record in state.stages.items() if record.done}
    summary: dict[str, Any] = {}
    if rounded := {name: result["precision"] for name, result in results.items() if "precision" in result}:
        summary["precision"] = rounded
    for stage, fields in _SUPERVISED.items():
        if stage in results:
            summary[stage] = {name: results[stage].get(name) for name in fields}
    if "rl" in results:
        rows = read_metrics(paths.metrics("rl"))
        summary["rl"] = _rl(results["rl"], rows)
        summary["replay"] = _replay(rows)
        engine = _engine_totals(rows)
        summary["weights"] = _weights(rows, engine)
        summary["engine"] = _engine(engine)
    if "continued" in results:
        summary["continued"] = dict(results["continued"])
    if "evaluate" in results:
        names = [name for name in results["evaluate"] if not name.endswith(one_edit(""))]
        start, end = names[0], names[-1]
        before, after = (_json(paths.evaluation(f"test-{name}") / "summary.json") for name in (start, end))
        summary.setdefault(start, {})["valid_calls"] = before["valid_calls"]
        if start == end:  # the run has one model only
            before = {}
        summary[end] |= {"tasks": after["tasks"], "k": after["k"], "test_evaluations": after["touch"]}
        summary[end] |= _compared(before, after, ("pass1", "passk", "greedy", "first_edit"))
        capped = [paths.evaluation(one_edit(f"test-{name}")) / "summary.json" for name in (start, end)]
        if all(file.exists() for file in capped):
            summary[end] |= _one_edit(*map(_json, capped))
        first, second = (evaluation.get("by_cell", {}) for evaluation in (before, after))
        summary["cells"] = {
            name: {"tasks": first[name]["tasks"], **_compared(first[name], second[name], ("pass1", "passk", "greedy"))}
            for name in sorted(first.keys() & second.keys())
        }
    summary["seconds"] = {name: round(record.seconds, 1) for name, record in state.stages.items()}
    summary["sessions"] = {name: record.sessions for name, record in state.stages.items()}
    summary["waits"] = waits(paths.journal)
    if summary.get("engine"):
        summary["waits"].setdefault("engine", {})["requests"] = round(summary["engine"]["seconds_idle"], 3)
    return summary


def one_edit(evaluation: str) -> str:
    """Return the name of the variant of an evaluation that allows at most one edit per rollout."""
    return f"{evaluation}-one-edit"


def _one_edit(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    first, second = ({"one_edit": found["pass1"], "one_edit_greedy": found["greedy"]} for found in (before, after))
    return _compared(first, second, ("one_edit", "one_edit_greedy")) | {"test_evaluations": after["touch"]}


def _compared(before: dict[str, Any], after: dict[str, Any], scores: Iterable[str]) -> dict[str, Any]:
    """Return each score's mean and interval, as `<score>_before`, `<score>_before_interval` and the same for "after";
    None for a score that an evaluation does not have."""
    compared: dict[str, Any] = {}
    for score in scores:
        for when, evaluation in (("before", before), ("after", after)):
            found = evaluation.get(score)
            compared[f"{score}_{when}"] = None if found is None else found["mean"]
            compared[f"{score}_{when}_interval"] = None if found is None else [found["low"], found["high"]]
    return compared


def _rl(result: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    tokens = _total(rows, "trained_tokens")
    rollouts = _total(rows, "rollouts")
    return {
        "steps": result["steps"],
        "staleness_mean": _mean(rows, "staleness"),
        "staleness_max": max((row["staleness_max"] for row in rows), default=0),
        "multi_version_share": _total(rows, "multi_version_tokens") / tokens if tokens else 0.0,
        "summary_share": _total(rows, "with_summary") / rollouts if rollouts else 0.0,
        "infra_errors": result["infra_errors"],
        "masked": int(_total(rows, "masked")),
        "dropped_groups": int(_total(rows, "dropped_groups")),
        "trained_tokens": int(tokens),
        **_ends(rows, "solved"),
        **_ends(rows, "truncated"),
        **_ends([row for row in rows if "draft_accepted" in row], "draft_accepted"),
    }


def _ends(rows: list[dict[str, Any]], key: str) -> dict[str, float | None]:
    """Return the means of `key` over the first and last quarter of the steps. Single steps would be misleading, since
    all tasks of a step may be easy."""
    quarter = -(-len(rows) // 4)
    return {
        f"{key}_first": _mean(rows[:quarter], key) if rows else None,
        f"{key}_last": _mean(rows[-quarter:], key) if rows else None,
    }


def _replay(rows: list[dict[str, Any]]) -> dict[str, Any]:
    probes = {
        f"p99_{mode}": _mean([r for r in rows if f"p99_{mode}" in r], f"p99_{mode}") for mode in ("off", "on", "filter")
    }
    return {"overridden": int(_total(rows, "overridden")), "refused": int(_total(rows, "refused")), **probes}


def _weights(rows: list[dict[str, Any]], engine: dict[str, Any]) -> dict[str, Any]:
    deltas = [row for row in rows if row["delta"]]
    return {
        "published": len(rows),
        "deltas": len(deltas),
        "applied": engine.get("swaps", 0),
        "deltas_applied": engine.get("deltas_applied", 0),
        "delta_share_mean": _mean(deltas, "delta_share"),
        "changed_share_mean": _mean(deltas, "share_changed"),
    }


def _engine_totals(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Sum the engine's counters over its restarts. Each engine process counts from 0, so a lower value than in the row
    before means a new process. The row of a step has no counters if the driver died before asking for them."""
    totals: dict[str, float] = {}
    last: dict[str, float] = {}
    for now in (row["engine"] for row in rows if "engine" in row):
        fresh = now["decode_steps"] < last.get("decode_steps", 0)
        for name, value in now.items():
            totals[name] = totals.get(name, 0) + value - (0 if fresh else last.get(name, 0))
        last = now
    return totals


def _engine(stats: dict[str, Any]) -> dict[str, Any]:
    if not stats:
        return {}
    drafts = {
        "drafted": stats["drafted"],
        "accepted": stats["accepted"],
        "accepted_per_step": stats["accepted"] / max(stats["decode_steps"], 1),
        "accepted_per_draft": stats["accepted"] / max(stats["drafted"], 1),
    }
    return {
        "sampled_tokens": stats["sampled_tokens"],
        "prefilled_tokens": stats["prefilled_tokens"],
        "cached_tokens": stats["cached_tokens"],
        **(drafts if stats["drafted"] else {}),
        "seconds_idle": stats["seconds_idle"],
        "tokens_per_second": stats["sampled_tokens"] / stats["seconds_busy"] if stats["seconds_busy"] else 0.0,
    }


def _json(file: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return values


def _total(rows: Iterable[dict[str, Any]], name: str) -> float:
    return float(sum(row.get(name, 0) for row in rows))


def _mean(rows: Iterable[dict[str, Any]], name: str) -> float:
    values = [row[name] for row in rows if name in row]
    return float(np.mean(values)) if values else 0.0
