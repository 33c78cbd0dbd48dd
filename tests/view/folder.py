"""A run's folder as a finished run leaves it, written by hand: everything that the report reads, nothing else."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from etude.journal import Journal, RunPaths
from etude.trace import StopCause, Trace
from etude.trace.file import TraceWriter


def _call(name: str, **arguments: object) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]}


def _said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


STARTED = 1772366400.0
"""1 March 2026."""
CELLS = ("both_seen", "unseen_family", "unseen_kind", "both_unseen")
GOOD = [
    _said("system", "fix the code"),
    _said("user", "fix scale_load"),
    _call("shell", command="python check.py"),
    _said("tool", "FAIL scale_load(28, 36) gave 328, expected 400\nexit 1"),
    _call("read", path="kitchen.py"),
    _said(
        "tool", "1 # load times 4 plus score times 8\n2 def scale_load(load, score):\n3     return load * 4 + score * 6"
    ),
    _said("user", "note"),
    _said("assistant", "next edit kitchen.py 3"),
    _said("system", "fix the code"),
    _said("user", "fix scale_load\nnote 1 next edit kitchen.py 3"),
    _call("edit", path="kitchen.py", lines="3 return load * 4 + score * 8"),
    _said("tool", "ok"),
    _call("finish"),
]
BAD = [
    *GOOD[:4],
    _call("edit", path="kitchen.py", lines="7 return <b>1</b>"),
    _said("tool", "no line 7"),
    *GOOD[6:8],
]
DIFF = """--- a/kitchen.py
+++ b/kitchen.py
@@ -3 +3 @@
-    return load * 4 + score * 6
+    return load * 4 + score * 8
"""


def _trace(name: str, task: str, messages: list[dict[str, Any]], diff: str) -> Trace:
    trace = Trace(name, task, "test", task, 0, "policy", 0)
    trace.messages, trace.diff, trace.stop = messages, diff, StopCause.FINISHED if diff else StopCause.TURNS
    trace.usage.turns, trace.usage.tool_calls, trace.usage.sampled_tokens = 5, 4, 96
    return trace


def _estimate(mean: float) -> dict[str, float]:
    return {"mean": mean, "low": max(mean - 0.1, 0), "high": min(mean + 0.1, 1)}


def _evaluation(paths: RunPaths, name: str, solved: float) -> None:
    folder = paths.evaluation(name)
    folder.mkdir(parents=True)
    scores = {key: _estimate(solved) for key in ("pass1", "passk", "greedy")}
    (folder / "summary.json").write_text(json.dumps({"name": name, "k": 4, **scores}))
    if not name.startswith("test"):
        return
    rows, traces = [], []
    for number in range(4):
        good = number < solved * 4
        task = f"microrepo-test-{number:05d}"
        traces.append(_trace(f"{name}:{task}", task, GOOD if good else BAD, DIFF if good else ""))
        judgement = "pass" if good else "fail"
        reason = "" if good else "ran out of its budget: turns"
        row = {"task": task, "trace": f"{name}:{task}", "greedy": False, "judgement": judgement, "reason": reason}
        rows.append(json.dumps(row) + "\n")
    (folder / "results.jsonl").write_text("".join(rows) + '{"torn')
    TraceWriter(folder / "traces").write(traces)


def write_run(root: Path, *, steps: int = 40) -> RunPaths:
    paths = RunPaths(root)
    root.mkdir(parents=True)
    stages = ("tasks", "corpus", "pretrain", "long", "mtp", "demonstrations", "sft", "rl", "evaluate")
    record = {"recipe_digest": "a" * 16, "code_digest": "b" * 16, "started": STARTED, "seconds": 12.5, "sessions": 1}
    record |= {"done": True, "inputs": {}, "output": "c" * 16, "result": {}}
    lineage = {"stages": dict.fromkeys(stages, record), "compute": {}}
    paths.lineage.write_text(json.dumps(lineage))
    rl = {"k": 4, "pass1_before": 0.2, "pass1_after": 0.6, "passk_before": 0.4, "passk_after": 0.8, "greedy_after": 0.7}
    rl |= {"tasks": 40, "test_evaluations": 2, "pass1_before_interval": [0.1, 0.3], "pass1_after_interval": [0.5, 0.7]}
    rl |= {"trained_tokens": 123456, "multi_version_share": 0.2, "summary_share": 0.3, "staleness_mean": 1.2}
    summary = {
        "cells": {key: _cell(number) for number, key in enumerate(CELLS)},
        "pretrain": {"loss_before": 6.9, "loss_after": 1.2},
        "long": {"late_loss_before": 3.0, "late_loss_after": 1.4},
        "mtp": {"accepted_per_draft": 0.7},
        "sft": {"valid_calls": 0.98},
        "rl": rl,
        "seconds": dict.fromkeys(stages, 12.5),
    }
    paths.summary.write_text(json.dumps(summary))
    for stage in ("pretrain", "long", "mtp", "sft"):
        _metrics(paths, stage, [{"step": s, "loss": 6 * math.exp(-s / 15) + 1} for s in range(1, steps)])
    rows = []
    for s in range(1, steps):
        rise = 1 - math.exp(-s / 15)
        row = {"step": s, "solved": 0.2 + 0.5 * rise, "turns": 7 - 2 * rise, "truncated": 0.3 * (1 - rise)}
        row |= {"claimed_but_failed": 0.2 * (1 - rise), "entropy": 1.5 - rise, "mismatch_mean": 2e-3}
        row |= {"mismatch_p99": 2e-2, "staleness": 1.0 + 0.1 * (s % 3), "delta_share": 0.12}
        rows.append(row)
    _metrics(paths, "rl", rows)
    for name, solved in (("dev-step-000010", 0.4), ("dev-step-000020", 0.6), ("test-sft", 0.25), ("test-rl", 0.75)):
        _evaluation(paths, name, solved)
    journal = Journal(paths.journal, "driver")
    journal.event(
        "run_started", parameters=1_620_000, active=980_000, cpus=2, kind="a CPU", memory_gib=8.0, accelerator=""
    )
    for _ in range(100):
        used = {"driver": 0.1, "engine": 0.8, "trainer": 0.1, "worker-0": 0.4}
        journal.event("cores", seconds=1.0, cores=2, busy=1.5, used=used, engine_waited=0.1)
    journal.close()
    trainer = Journal(paths.journal, "trainer")
    trainer.event("wait", on="rollouts", seconds=60.0, deadline=60.0, outcome="done")
    trainer.close()
    return paths


def _cell(number: int) -> dict[str, Any]:
    """The further from what was met, the less RL helps; where nothing was met, the best of 4 falls."""
    before = {"pass1_before": 0.2, "pass1_before_interval": [0.1, 0.3], "passk_before": 0.5}
    return {"tasks": 10, **before, "pass1_after": 0.6 - number / 10, "passk_after": 0.6 - number / 20}


def _metrics(paths: RunPaths, stage: str, rows: list[dict[str, Any]]) -> None:
    file = paths.metrics(stage)
    file.parent.mkdir(parents=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 9')
