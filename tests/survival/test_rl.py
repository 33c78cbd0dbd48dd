"""kill -9 of the driver, the trainer, the engine, an environment worker and the evaluator in the RL stage."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.survival.runner import PATIENCE, Run, assert_each_prompt_once, rl_run

from etude.journal import read_journal, read_metrics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(PATIENCE)]

PROMPTS = range(20)
"""steps x prompts_per_step of the recipe."""
IN_THE_MIDDLE = 0.05
"""Seconds to wait after work has begun, so that the kill hits the middle of it: a step is sampled in under a second."""


def sampling(step: int):
    """The rollouts of a step have started. The step may have ended if it was too quick for the polling."""
    return lambda run: run.count("Trained") >= step and run.count("Admitted") >= 4 * (step + 1)


def finished(rollouts: int):
    """Some rollouts have finished and others have not."""
    return lambda run: run.count("Finished") >= rollouts


def training(step: int):
    return lambda run: run.count("TrainStarted") > step


def evaluating(number: int):
    return lambda run: len(run.entries("split_touch")) >= number


def strike(run: Run, victim: str, moment) -> None:
    run.wait(moment)
    time.sleep(IN_THE_MIDDLE)
    run.kill(victim)
    run.wait(lambda run: run.restarts(victim) > 0)


@pytest.mark.soak
def test_two_undisturbed_lockstep_runs_are_bit_equal(base: Path, undisturbed, tmp_path: Path) -> None:
    with rl_run(base, tmp_path / "again", "rl.mode=sync") as run:
        assert run.start().finish_rl().final_weights() == undisturbed
        trained = [row["trained_tokens"] for row in read_metrics(run.paths.metrics("rl"))]
        assert sum(tokens > 0 for tokens in trained) >= 3, "too few steps trained on any token to compare weights"
        assert_each_prompt_once(run, PROMPTS)
        assert run.left_behind() == []


def test_lockstep_survives_its_services(base: Path, undisturbed, tmp_path: Path) -> None:
    with rl_run(base, tmp_path / "run", "rl.mode=sync", "cluster.restarts=9") as run:
        run.start()
        strike(run, "worker-1", sampling(0))
        strike(run, "trainer", training(1))
        strike(run, "engine", sampling(2))
        run.wait(evaluating(3))
        run.kill("evaluator")
        run.finish_rl()
        # Evaluations run before the first step and after the second, fourth and fifth (last) step.
        evaluated = [e.fields for e in run.entries("evaluated")]
        assert [fields["errors"] for fields in evaluated] == [0, 0, 0, 0]
        assert [fields["versions"] for fields in evaluated] == [[0, 0], [2, 2], [4, 4], [5, 5]]
        assert_each_prompt_once(run, PROMPTS)
        assert len(run.entries("step_replayed")) >= 2
        assert run.entries("step_repeated"), "the trainer died after its first step, of which it has no checkpoint"
        assert run.lineage("rl")["result"]["infra_errors"] == 0, "a second attempt samples something else"
        assert run.final_weights() == undisturbed
        assert run.left_behind() == []


def test_free_running_survives_its_services(base: Path, tmp_path: Path) -> None:
    with rl_run(base, tmp_path / "run", "rl.checkpoint_seconds=0") as run:
        run.start()
        strike(run, "worker-0", sampling(0))
        strike(run, "trainer", training(1))
        strike(run, "engine", lambda run: run.count("Trained") >= 2)
        run.finish_rl()
        assert_each_prompt_once(run, PROMPTS)
        assert run.lineage("rl")["result"]["masked"] == 0
        assert run.entries("step_repeated") == [], "each step has its checkpoint"
        assert run.left_behind() == []


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.soak)])
def test_the_same_command_goes_on_after_the_drivers_death(base: Path, undisturbed, tmp_path: Path, mode: str) -> None:
    with rl_run(base, tmp_path / "run", f"rl.mode={mode}") as run:
        for moment in (finished(1), sampling(1), training(2), evaluating(1)):
            run.start()
            run.wait(lambda run: bool(run.entries("stage_started")))
            run.wait(moment)
            run.kill_driver()
            assert run.left_behind() == []
        run.start().finish_rl()
        assert run.lineage("rl")["sessions"] == 5
        assert_each_prompt_once(run, PROMPTS)
        evaluated = [str(e.fields["name"]) for e in read_journal(run.paths.journal, kind="evaluated")]
        steps = [int(name.removeprefix("dev-step-")) for name in evaluated if name.startswith("dev-")]
        assert len(set(steps)) == len(steps), "a session repeated an evaluation that an earlier session had finished"
        # In async mode evaluations run concurrently and end in any order. One that a kill interrupted is given up if
        # the engine has newer weights by then.
        assert {0, 5} <= set(steps)
        assert steps == [0, 2, 4, 5] or mode == "async"
        if mode == "sync":
            assert run.final_weights() == undisturbed
