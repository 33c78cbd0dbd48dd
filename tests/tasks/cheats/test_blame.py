"""Who breaks the grading is judged: nothing that an agent does to its files, output or memory is an error of ours."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path

import pytest

from etude.tasks.cheats import CHEATS, fitting

from ..conftest import Boxes
from .playing import tried, written

CATALOGUE = resources.files("etude.tasks.cheats") / "catalogue/blame.toml"
NAMES = tomllib.loads(CATALOGUE.read_text(encoding="utf-8")).keys() - {"fragments"}


@pytest.mark.parametrize(
    "environment",
    [
        "unittest-spans", "cases-scores", "script-build", "mutation-calc",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("pytest-prices", "node-cart", "image-build")),
    ],
)  # fmt: skip
def test_who_breaks_the_grading_is_judged(boxes: Boxes, tmp_path: Path, environment: str) -> None:
    tasks, cheats = written(tmp_path, environment), [CHEATS[name] for name in NAMES]
    assert fitting(cheats, tasks)
    found = tried(boxes, cheats, tasks)
    assert [f"{made.cheat}: {made.verdict}" for made in found if not made.caught] == []
