from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from etude.recipe.acting import TasksRecipe
from etude.tasks import Split, UnknownSource, generate_tasks, open_source, register_source
from etude.tasks.microrepo import KINDS, MicroRepoSource, families_of

RECIPE = TasksRecipe(train=12, dev=3, test=4)


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_generation_is_deterministic_and_goes_on_where_it_was(tmp_path: Path) -> None:
    tasks = generate_tasks(RECIPE, 3, tmp_path / "a")
    assert [task.split for task in tasks] == [Split.TRAIN] * 12 + [Split.DEV] * 3 + [Split.TEST] * 4
    whole = contents(tmp_path / "a")
    shutil.rmtree(tmp_path / "a/train" / tasks[5].id)
    (tmp_path / "a/train" / f".{tasks[6].id}.1.tmp").mkdir()
    again = generate_tasks(RECIPE, 3, tmp_path / "a")
    assert contents(tmp_path / "a") == whole
    assert [(t.id, t.instruction, t.kind) for t in again] == [(t.id, t.instruction, t.kind) for t in tasks]
    generate_tasks(RECIPE, 4, tmp_path / "a")
    others = contents(tmp_path / "a")
    assert {name.split("/")[1] for name in others} == {name.split("/")[1] for name in whole}
    assert others != whole


def test_families_decide_the_split_and_every_kind_is_offered_in_each(tmp_path: Path) -> None:
    for task in generate_tasks(RECIPE, 9, tmp_path):
        assert task.family in {family.name for family in families_of(task.split)}
    only = MicroRepoSource(["noret"])
    assert {only.make(Split.TEST, index, 1, tmp_path)[0].kind for index in range(5)} == {"noret"}
    kinds = {MicroRepoSource().make(Split.TEST, index, 1, tmp_path)[0].kind for index in range(120)}
    assert kinds == set(KINDS)


def test_a_source_of_ones_own_is_registered_by_name() -> None:
    with pytest.raises(UnknownSource, match=r"there are: .*microrepo"):
        open_source("mine")
    with pytest.raises(ValueError, match="already"):
        register_source("microrepo", MicroRepoSource)
