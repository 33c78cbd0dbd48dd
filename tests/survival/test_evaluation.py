"""kill -9 of the engine, the worker and the driver while the test split is evaluated."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.survival.runner import PATIENCE, Run, assert_each_prompt_once, rl_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(PATIENCE)]


def test_the_test_split_is_evaluated_once_all_the_same(base: Path, tmp_path: Path) -> None:
    with rl_run(base, tmp_path / "run", "rl.steps=2", "rl.evaluate_every=0") as run:
        run.start()
        for victim in ("engine-sft", "evaluator-sft"):
            run.wait(started(victim))
            run.kill(victim)
        run.wait(started("evaluator-rl"))
        run.kill_driver()
        assert run.left_behind() == []
        printed = run.start().finish()
        assert "going on with" in printed
        assert "report" in printed
        assert_each_prompt_once(run, range(8))
        for name, touch in (("test-sft", 1), ("test-rl", 2)):
            result = run.lineage("evaluate")["result"][name.removeprefix("test-")]
            assert result == {"tasks": 2, "errors": 0, "touch": touch}
        assert run.left_behind() == []


def started(service: str):
    def come(run: Run) -> bool:
        return any(e.fields["service"] == service for e in run.entries("service_started"))

    return come
