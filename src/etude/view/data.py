"""The data behind a report: the files of a run's folder, each read once."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etude.journal import RunPaths, read_journal, read_metrics, wait_spans
from etude.view.cores import Parts, Sample, attributed, samples_of

SUPERVISED = ("pretrain", "long", "mtp", "sft")


@dataclass(slots=True)
class RunData:
    paths: RunPaths
    summary: dict[str, Any]
    stages: dict[str, dict[str, Any]]
    """Records of the stages in lineage.json."""
    metrics: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Rows of metrics by stage."""
    evaluations: dict[str, dict[str, Any]] = field(default_factory=dict)
    cores: list[Sample] = field(default_factory=list)
    """Samples of CPU use during RL, about one per second. Runs of older versions have none."""
    parts: list[Parts] = field(default_factory=list)
    """For each sample in `cores`, how its core-seconds divide among the processes that used them and the waits that
    left them idle."""
    started: dict[str, Any] = field(default_factory=dict)
    """Fields of the journal's event run_started: the model's size and the machine."""

    @property
    def ends(self) -> tuple[str, str]:
        """The names of the two test evaluations: of the model before the last training stage, and of the one after
        it."""
        trained = [f"test-{stage}" for stage in ("base", *SUPERVISED, "continued", "rl") if stage in self.stages] or [
            ""
        ]
        return trained[-2:][0], trained[-1]

    def series(self, stage: str, field_name: str) -> tuple[list[float], list[float]]:
        """Return the steps at which a metric was logged, and its values."""
        rows = [row for row in self.metrics.get(stage, []) if isinstance(row.get(field_name), int | float)]
        return [float(row["step"]) for row in rows], [float(row[field_name]) for row in rows]


def read_run(paths: RunPaths) -> RunData:
    data = RunData(paths, _json(paths.summary), _json(paths.lineage).get("stages", {}))
    for stage in (*SUPERVISED, "rl"):
        data.metrics[stage] = read_metrics(paths.metrics(stage))
    folder = paths.root / "eval"
    if folder.is_dir():
        data.evaluations = {
            file.parent.name: _json(file) for file in sorted(folder.glob("*/summary.json"), key=lambda f: f.parent.name)
        }
    told = [entry for entry in read_journal(paths.journal) if entry.kind in ("wait", "cores", "run_started")]
    data.started = next((entry.fields for entry in told if entry.kind == "run_started"), {})
    data.cores = samples_of(told)
    data.parts = attributed(data.cores, wait_spans(told))
    return data


def _json(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return values
