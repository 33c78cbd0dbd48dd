"""kill -9 of trainer, engine, worker and driver during continued SFT. Each round must count exactly once."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.survival.runner import PATIENCE, Run, rl_run

from etude.journal import read_metrics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(PATIENCE)]

SECONDS = 60
"""Time of the stage: several times that of the first round, so that there is time left for a second one."""
SETTINGS = (f"continued.seconds={SECONDS}", "continued.prompts=4", "continued.samples=3", "continued.demonstrations=12")


def rounds(run: Run) -> list[dict]:
    return read_metrics(run.paths.metrics("continued"))


def test_each_round_counts_once_whoever_dies(base: Path, tmp_path: Path) -> None:
    with rl_run(base, tmp_path / "run", *SETTINGS) as run:
        run.start()
        run.wait(lambda run: len(rounds(run)) >= 1)
        for service in ("trainer", "engine", "worker-0"):
            run.kill(service)
        run.wait(lambda run: len(rounds(run)) >= 2)
        assert sum(map(run.restarts, ("trainer", "engine", "worker-0"))) >= 2, run.story()
        run.kill_driver()
        assert run.left_behind() == []
        before = rounds(run)
        assert re.search(r"^continued +test tasks solved, pass@1", run.start().finish(), re.MULTILINE)
        rows, result = rounds(run), run.lineage("continued")["result"]
        assert rows[: len(before)] == before
        assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
        assert result["rounds"] == len(rows)
        assert sum(row["seconds"] for row in rows) + rows[-1]["seconds"] / 2 >= SECONDS
        assert result["sampled"] == 12 * len(rows)
        assert result["demonstrations"] == 12 * len(rows)
        assert (run.paths.model("continued") / "model.safetensors").exists()
        used = [task for row in range(len(rows)) for task in tasks_of(run, row)]
        assert len(used) == len(set(used)), "a task was demonstrated twice"
        assert not set(used) & {folder.name for folder in (run.paths.tasks / "train").iterdir()}
        assert "rl" not in json.loads(run.paths.lineage.read_text())["stages"]
        summary = json.loads(run.paths.summary.read_text())
        assert summary["continued"]["rounds"] == len(rows)
        assert summary["continued"]["pass1_after"] is not None
        assert "rl" not in summary
        assert {folder.name for folder in (run.root / "eval").iterdir()} == {"test-sft", "test-continued"}


def tasks_of(run: Run, number: int) -> list[str]:
    return [folder.name for folder in (run.paths.continued / f"round-{number:04d}" / "tasks").iterdir()]
