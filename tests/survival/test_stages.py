"""kill -9 before RL: of the driver in every stage, and of the service process that runs a supervised stage."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.survival.runner import PATIENCE, Run, cleared

pytestmark = [pytest.mark.slow, pytest.mark.timeout(PATIENCE)]

SUPERVISED = ("pretrain", "long", "mtp", "sft")
BEFORE_RL = ("tasks", "corpus", "pretrain", "demonstrations", "sft")
"""Where the driver is killed. The other supervised stages have the same driver, and their own kills below."""


def in_stage(name: str):
    """The stage has begun and, if it is supervised, has written a checkpoint."""

    def come(run: Run) -> bool:
        if not any(e.fields["stage"] == name for e in run.entries("stage_started")):
            return False
        return name not in SUPERVISED or any(run.paths.checkpoints(name).glob("step-*"))

    return come


def models(root: Path) -> dict[str, bytes]:
    return {name: (root / f"stages/{name}/model/model.safetensors").read_bytes() for name in SUPERVISED}


def stop_before_rl(run: Run) -> None:
    run.wait(lambda run: any(e.fields["stage"] == "rl" for e in run.entries("stage_started")))
    run.kill_driver()


def test_the_driver_may_die_in_every_stage(base: Path, tmp_path: Path) -> None:
    with cleared(Run(tmp_path / "run")) as run:
        for name in BEFORE_RL:
            run.start()
            run.wait(in_stage(name))
            time.sleep(0.2)
            run.kill_driver()
            assert run.left_behind() == [], name
        run.start()
        stop_before_rl(run)
        assert models(run.root) == models(base)
        assert (run.paths.tokenizer).read_bytes() == (base / "tokenizer.json").read_bytes()


def test_a_supervised_stage_heals(base: Path, tmp_path: Path) -> None:
    with cleared(Run(tmp_path / "run")) as run:
        run.start()
        for name in SUPERVISED:
            run.wait(in_stage(name))
            with suppress(ProcessLookupError):  # A stage this small may already be over.
                run.kill(name)
        stop_before_rl(run)
        assert sum(run.restarts(name) for name in SUPERVISED) >= 2, run.story()
        assert all(run.lineage(name)["sessions"] == 1 for name in SUPERVISED)
        assert models(run.root) == models(base)
        assert run.left_behind() == []
