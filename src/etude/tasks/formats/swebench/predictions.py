"""Predictions: the patch that a model proposes for each instance, in the file formats of SWE-bench's tools.

`.json` holds a list of predictions or an object keyed by instance id; `.jsonl` has one per line. Two predictions for
the same instance are an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from etude.journal import write_atomically
from etude.tasks.formats.swebench.rows import read_rows
from etude.tasks.task import TaskError
from etude.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class Prediction:
    instance_id: str
    model: str
    patch: str
    """The model's change as a unified diff; empty if the model did not produce one."""


def read_predictions(path: Path) -> list[Prediction]:
    """Read predictions from a file. The TaskError for an invalid row names the row, the field and what was expected."""
    if path.suffix not in (".json", ".jsonl"):
        raise TaskError(f"{path}: expected predictions in a .json or .jsonl file")
    found: dict[str, Prediction] = {}
    for row in read_rows(path):
        texts: dict[str, str] = {}
        for field in ("instance_id", "model_name_or_path", "model_patch"):
            value = row.values.get(field)
            if field == "model_patch" and value is None:
                value = ""
            if not isinstance(value, str) or (field == "instance_id" and not value):
                raise TaskError(f"{row.place}: {field}: expected text, found {str(value)[:60]!r}")
            texts[field] = value
        identity = texts["instance_id"]
        if identity in found:
            raise TaskError(f"{row.place}: instance_id: expected one prediction for each, found {identity!r} again")
        found[identity] = Prediction(identity, texts["model_name_or_path"], texts["model_patch"])
    return list(found.values())


def export_predictions(predictions: Iterable[Prediction], path: Path) -> int:
    """Write predictions as .json (an object by instance id) or .jsonl, by the file's suffix. Return their number."""
    rows = {
        one.instance_id: {
            "instance_id": one.instance_id,
            "model_name_or_path": one.model,
            "model_patch": one.patch,
        }
        for one in predictions
    }
    if path.suffix not in (".json", ".jsonl"):
        raise TaskError(f"{path}: expected a name that ends in .json or .jsonl")
    lines = "".join(json.dumps(row) + "\n" for row in rows.values())
    text = lines if path.suffix == ".jsonl" else json.dumps(rows, indent=2) + "\n"
    write_atomically(path, text.encode())
    return len(rows)


def predictions_of(traces: Iterable[Trace], model: str) -> list[Prediction]:
    """Return one prediction per task, from its first rollout without an error. Picking the rollout by score would be
    cheating."""
    first: dict[str, Prediction] = {}
    for trace in traces:
        if not trace.error:
            first.setdefault(trace.task, Prediction(trace.task, model, trace.diff))
    return list(first.values())
