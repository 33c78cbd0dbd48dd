"""The plan of every recipe that begins with a model can be made from a config.json alone, without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.cli.run import run_command
from etude.lineage import plan
from etude.lineage.probe import Pace
from etude.model import survey
from etude.recipe import load_recipe

FROM = [recipe for recipe in sorted(Path("recipes").glob("*.toml")) if load_recipe(recipe).model.from_]
PUBLISHED = {
    "qwen3-0.6b": (596_049_920, 596_049_920),
    "qwen3-4b": (4_022_468_096, 4_022_468_096),
    "qwen3-coder-30b": (30_532_122_624, 3_353_032_704),
    "kimi-k2.5": (1_026_408_209_408, 32_861_477_888),
}
"""Parameters as their makers count them: all, and those that a token uses."""


@pytest.mark.parametrize("recipe", FROM, ids=lambda path: path.stem)
def test_a_plan_needs_no_more_than_a_shape(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = load_recipe(recipe)
    shape = tmp_path / "shape"
    shape.mkdir()
    (shape / "config.json").write_bytes((Path(asked.model.from_) / "config.json").read_bytes())
    monkeypatch.setattr(plan, "probe", lambda recipe, compute: Pace(token=1e-3, grading=0.02, document=1e-3))
    assert run_command(recipe, [f"model.from={shape}"], tmp_path, None, dry_run=True) == 0
    said = capsys.readouterr().out
    planned = [line.split()[1] for line in said[said.index("# plan") :].splitlines() if line.startswith("# ")]
    assert {"base", "parameters", "memory", "disk", *asked.training} <= set(planned)
    assert list(tmp_path.iterdir()) == [shape], "nothing runs"


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_shape_has_as_many_parameters_as_published(name: str) -> None:
    found = survey(Path("recipes/shapes") / name).parameters
    assert (found.total, found.active) == PUBLISHED[name]
