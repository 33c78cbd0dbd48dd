"""Files of predictions, theirs and ours, and the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from etude.tasks import Judgement, TaskError
from etude.tasks.formats.swebench import (
    Graded,
    Prediction,
    export_predictions,
    make_report,
    predictions_of,
    read_predictions,
)
from etude.trace.trace import Trace

TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
PREDICTIONS = st.lists(
    st.builds(Prediction, st.text("ab_-1", min_size=1, max_size=6), TEXT, TEXT), unique_by=lambda one: one.instance_id
)
ROW = {"instance_id": "a__b-1", "model_name_or_path": "m", "model_patch": "x"}


@pytest.mark.parametrize("name", ["preds.json", "preds.jsonl"])
@given(PREDICTIONS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_read(tmp_path: Path, name: str, predictions: list[Prediction]) -> None:
    assert export_predictions(predictions, tmp_path / name) == len(predictions)
    assert read_predictions(tmp_path / name) == predictions


def test_the_forms_that_others_write(tmp_path: Path) -> None:
    other = {**ROW, "instance_id": "a__b-2", "model_patch": None, "extra": 1}
    wanted = [Prediction("a__b-1", "m", "x"), Prediction("a__b-2", "m", "")]
    for name, text in {
        "list.json": json.dumps([ROW, other]),
        "dict.json": json.dumps({"a__b-1": ROW, "a__b-2": other}),
        "lines.jsonl": f"{json.dumps(ROW)}\n\n{json.dumps(other)}\n",
    }.items():
        (tmp_path / name).write_text(text)
        assert read_predictions(tmp_path / name) == wanted
    written = tmp_path / "preds.json"
    export_predictions(wanted, written)
    assert json.loads(written.read_text())["a__b-1"] == ROW


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({**ROW, "instance_id": ""}, "instance_id: expected text"),
        ({**ROW, "instance_id": 5}, "instance_id: expected text"),
        ({**ROW, "model_patch": ["x"]}, "model_patch: expected text"),
        ({"instance_id": "a"}, "model_name_or_path: expected text"),
        (5, "row 1: expected an object"),
    ],
)
def test_a_mistake_names_row_and_field(tmp_path: Path, row: object, said: str) -> None:
    (tmp_path / "preds.json").write_text(json.dumps([row]))
    with pytest.raises(TaskError) as raised:
        read_predictions(tmp_path / "preds.json")
    assert said in str(raised.value)


def test_an_instance_is_predicted_once(tmp_path: Path) -> None:
    (tmp_path / "preds.json").write_text(json.dumps([ROW, ROW]))
    with pytest.raises(TaskError, match="row 2: instance_id: expected one prediction for each"):
        read_predictions(tmp_path / "preds.json")
    for name in ("preds.txt", "preds.parquet"):
        with pytest.raises(TaskError, match=r"\.json or "):
            read_predictions(tmp_path / name)
        with pytest.raises(TaskError, match=r"\.json or "):
            export_predictions([], tmp_path / name)


def test_rollouts_become_predictions_without_a_choice_by_score() -> None:
    def trace(task: str, diff: str, error: str = "") -> Trace:
        return Trace(f"{task}{diff}", task, "dev", "group", 0, "policy", 1, diff=diff, error=error)

    traces = [trace("a", "", "the box was lost"), trace("a", "one"), trace("a", "two"), trace("b", "")]
    assert predictions_of(traces, "ours") == [Prediction("a", "ours", "one"), Prediction("b", "ours", "")]


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from([*Judgement, None])), unique_by=lambda pair: pair[0])
)
def test_a_report_counts_each_instance_once(drawn: list[tuple[str, Judgement | None]]) -> None:
    predictions = [Prediction(name, "m", "x" if judgement else " ") for name, judgement in drawn]
    graded = [Graded(name, "m", name, judgement, "why") for name, judgement in drawn if judgement]
    total = set("abcdefgh")
    report = make_report(total, predictions, graded)
    groups = ["resolved_ids", "unresolved_ids", "error_ids", "empty_patch_ids", "incomplete_ids"]
    listed = sorted(name for group in groups for name in report[group])
    assert listed == sorted(total), "every instance is in one group, and in one alone"
    assert set(report["completed_ids"]) == {*report["resolved_ids"], *report["unresolved_ids"]}
    assert set(report["suspect_ids"]) <= set(report["unresolved_ids"])
    for name, ids in report.items():
        if name.endswith("_ids") and f"{name[:-4]}_instances" in report:
            assert report[f"{name[:-4]}_instances"] == len(ids)
