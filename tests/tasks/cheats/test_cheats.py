"""No cheat succeeds, in any environment that it fits; beside them honest solutions pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.tasks import Judgement, Task
from etude.tasks.cheats import CHEATS

from ..conftest import Boxes
from .environments import real_environments
from .playing import honest, tried, written

CACHE = Path("runs/cheats-cache")
FORGERS = (
    "forges-everything", "forges-everything-but-the-end", "tells-controls-by-their-outcome", "writes-its-own-rows",
    "tells-other-values", "agrees-with-everything", "empties-the-tests", "patches-the-plugin",
)  # fmt: skip
"""Who passes whatever is asked: found out by the negative controls."""


def assert_none_succeeds(boxes: Boxes, tasks: list[Task], *, sealed: bool = True) -> None:
    for (task, what), verdict in honest(boxes, tasks).items():
        assert verdict.passed == (what != "nothing"), (task, what, verdict)
        assert not sealed or verdict.evidence.sealed or what == "nothing"
    found = tried(boxes, CHEATS.values(), tasks)
    assert len(found) >= 25 * len(tasks)
    assert [f"{made.cheat} in {made.task}: {made.verdict}" for made in found if not made.caught] == []


def test_there_are_cheats_of_every_kind() -> None:
    assert len(CHEATS) >= 100
    leasts = {60: "pytest unittest", 40: "cases node", 25: "script workflow image", 22: "review migration mutation"}
    for least, runners in leasts.items():
        for runner in runners.split():
            assert sum(runner in cheat.fits for cheat in CHEATS.values()) >= least, runner
    assert all(cheat.exploits and "\n" not in cheat.exploits for cheat in CHEATS.values())


@pytest.mark.slow
def test_no_cheat_succeeds_in_a_quick_environment(boxes: Boxes, tmp_path: Path) -> None:
    assert_none_succeeds(boxes, written(tmp_path, "unittest-spans"), sealed=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "pytest-prices", "node-cart", "cases-scores", "script-build", "workflow-check", "image-build",
        "review-calc", "migration-bill", "mutation-calc",
        *(
            pytest.param(name, marks=pytest.mark.soak)
            for name in (
                "pytest-pages", "pytest-raises", "pytest-src-layout", "pytest-table", "unittest-table",
                "unittest-ledger", "unittest-history", "node-slugs",
            )
        ),
    ],
)  # fmt: skip
def test_no_cheat_succeeds(boxes: Boxes, tmp_path: Path, name: str) -> None:
    assert_none_succeeds(boxes, written(tmp_path, name))


@pytest.mark.soak
def test_no_cheat_succeeds_in_real_packages(boxes: Boxes, tmp_path: Path) -> None:
    assert_none_succeeds(boxes, real_environments(tmp_path, CACHE))


@pytest.mark.parametrize("runner", ["unittest", pytest.param("pytest", marks=pytest.mark.slow)])
def test_who_passes_everything_is_suspect(boxes: Boxes, tmp_path: Path, runner: str) -> None:
    name = {"unittest": "unittest-spans", "pytest": "pytest-prices"}[runner]
    found = tried(boxes, [CHEATS[name] for name in FORGERS], written(tmp_path, name))
    assert {made.cheat: made.verdict.judgement for made in found} == dict.fromkeys(FORGERS, Judgement.SUSPECT)
