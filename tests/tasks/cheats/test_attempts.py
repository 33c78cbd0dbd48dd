"""How cheats are tried: which fit, what they find, how their diffs are collected, and what the gate is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from etude.sandbox.contract import Sandboxes
from etude.tasks import Grader, Judgement, Task, TaskError, Verdict, reference_diff, write_task
from etude.tasks.cheats import CHEATS, Scene, attempt, cheat, cheats_for_gate, fitting, runner_of
from etude.tasks.cheats.attempts import target_of

from .environments import known_breakable, micro_environments
from .environments.registry import REAL, fetched
from .playing import written

made = cheat("nothing", ("unittest", "pytest"))


def test_environments_are_of_every_kind_and_their_names_differ(tmp_path: Path) -> None:
    micros = micro_environments()
    assert len({micro.name for micro in micros}) == len(micros)
    assert len(micros) + len(REAL) >= 12
    tasks = [micro.write(tmp_path) for micro in micros]
    runners = "pytest unittest node cases script workflow image review migration mutation"
    assert {runner_of(task) for task in tasks} == set(runners.split())
    for micro, task in zip(micros, tasks, strict=True):
        assert target_of(task) == micro.target
        assert len({micro.before[micro.target], micro.right, micro.other}) == 3, micro.name


def test_only_cheats_that_fit_are_tried(tmp_path: Path) -> None:
    tasks = written(tmp_path, "node-cart", "script-build")
    pairs = fitting(CHEATS.values(), tasks)
    assert {runner_of(task) for _, task in pairs} == {"node", "script"}
    assert all(runner_of(task) in cheat.fits for cheat, task in pairs)
    assert "always-succeeds" in {cheat.name for cheat, task in pairs if runner_of(task) == "script"}


def test_a_task_without_a_reference_has_nothing_to_cheat_about(tmp_path: Path) -> None:
    task = written(tmp_path, "cases-scores")[0]
    write_task(replace(task, directory=tmp_path / "empty"), {"solution/patch.diff": b"", "environment/repo/a": b""})
    with pytest.raises(TaskError, match="changes nothing"):
        target_of(replace(task, directory=tmp_path / "empty"))


async def test_whoever_solves_the_task_passes_in_the_same_scene(grader: Grader, tmp_path: Path) -> None:
    """So that what catches the cheats is not the scene."""
    micro = next(micro for micro in micro_environments() if micro.name == "unittest-spans")
    seen: list[Scene] = []

    @made
    async def solves_all(scene: Scene) -> None:
        seen.append(scene)
        await scene.plant(scene.target, micro.right)

    found = await attempt(solves_all, micro.write(tmp_path), grader)
    assert (found.cheat, found.succeeded) == ("solves-all", True)
    assert not found.caught
    assert (seen[0].target, seen[0].runner, seen[0].workdir) == (micro.target, "unittest", "/work")


async def test_a_forged_diff_goes_before_the_boxs_own(grader: Grader, tmp_path: Path) -> None:
    task = written(tmp_path, "unittest-spans")[0]

    @made
    async def forges(scene: Scene) -> str:
        await scene.shell("rm -rf *")
        return reference_diff(task)

    assert (await attempt(forges, task, grader)).succeeded


class Luck(Grader):
    """Passes once, then no more."""

    passes = 1

    async def grade(self, task: Task, diff: str, *, fresh: bool = False, **more: object) -> Verdict:
        judgement = Judgement.PASS if self.passes > 0 else Judgement.SUSPECT
        self.passes -= 1
        return Verdict(judgement, "drawn")


async def test_a_guess_that_is_right_once_is_luck(sandboxes: Sandboxes, tmp_path: Path) -> None:
    task = written(tmp_path, "unittest-spans")[0]
    for passes, (succeeded, lucky) in ((1, (False, True)), (2, (True, False))):
        grader = Luck(sandboxes)
        grader.passes = passes
        found = await attempt(CHEATS["fuzzy-diff"], task, grader)
        assert (found.succeeded, found.lucky, found.caught) == (succeeded, lucky, not succeeded)


def test_code_is_put_after_what_must_stay_first() -> None:
    from etude.tasks.cheats.cheat import _first_line

    assert _first_line('"""Words."""\n\nfrom __future__ import annotations\n\nimport os\n') == 3
    assert _first_line("import os\n") == 0
    assert _first_line("x = (\n") == 0


@pytest.mark.slow
async def test_the_gate_is_told_which_cheats_succeed(grader: Grader, tmp_path: Path) -> None:
    known = known_breakable()[0]

    cheats = [CHEATS[known.cheat], CHEATS["forges-everything"], CHEATS["git-history"]]
    assert await cheats_for_gate(grader, cheats)(known.micro.write(tmp_path)) == [known.cheat]


def test_a_package_that_is_not_what_it_was_is_refused(tmp_path: Path) -> None:
    real = REAL[0]
    (tmp_path / f"{real.name}-{real.version}-{real.python}-none-any.whl").write_bytes(b"another")
    with pytest.raises(TaskError, match="expected the hash"):
        fetched(real, tmp_path)
