from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from etude.journal import RunPaths
from etude.lineage import LineageState
from etude.lineage.state import StageRecord
from etude.lineage.summary import _engine_totals, summarise


def test_a_run_with_one_model_has_no_score_before(tmp_path: Path) -> None:
    paths, score = RunPaths(tmp_path), {"mean": 0.5, "low": 0.4, "high": 0.6}
    results: dict[str, dict[str, Any]] = {
        "pretrain": {"loss_before": 7.0, "loss_after": 1.0},
        "evaluate": {"pretrain": {}},
    }
    done = {name: StageRecord("", "", 0.0, done=True, result=result) for name, result in results.items()}
    LineageState(done).save(paths.lineage)
    folder = paths.evaluation("test-pretrain")
    folder.mkdir(parents=True)
    seen = {"valid_calls": 0.1, "tasks": 4, "k": 2, "touch": 1, "pass1": score, "passk": score, "greedy": None}
    (folder / "summary.json").write_text(json.dumps(seen))
    found = summarise(paths)["pretrain"]
    assert (found["pass1_before"], found["pass1_after"], found["tasks"]) == (None, 0.5, 4)


def test_counters_are_summed_over_restarts_of_the_engine_and_steps_that_lack_them() -> None:
    counts = [(5, 2), None, (9, 4), (3, 1), (4, 1)]  # None: the driver died before it had asked.
    rows = [
        {} if count is None else {"engine": dict(zip(("decode_steps", "swaps"), count, strict=True))}
        for count in counts
    ]
    assert _engine_totals(rows) == {"decode_steps": 13, "swaps": 5}
    assert _engine_totals([{}]) == {}
