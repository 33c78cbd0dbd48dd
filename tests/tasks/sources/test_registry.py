from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.recipe.acting import CellsRecipe, TasksRecipe
from etude.tasks import Cell, Split, UnknownSource, generate_tasks, make_tasks, open_source, read_task, register_source
from etude.tasks.sources.microrepo import KINDS, SEEN_KINDS, UNSEEN_KINDS, MicroRepoSource, families_of
from etude.tasks.sources.microrepo.source import cell_at
from etude.tasks.task import TaskError

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


def test_another_drawing_has_other_test_tasks_and_the_rest_as_it_was(tmp_path: Path) -> None:
    generate_tasks(RECIPE, 3, tmp_path)
    first = contents(tmp_path)
    tasks = generate_tasks(RECIPE.model_copy(update={"test_draw": 1}), 3, tmp_path)
    second = contents(tmp_path)
    same = {name for name in first if second.get(name) == first[name]}
    assert {name for name in first if not name.startswith("test/")} <= same
    test = [task for task in tasks if task.split is Split.TEST]
    assert not {f"test/{task.id}/task.toml" for task in test} & same
    assert {task.provenance["seed"] for task in test} == {1_000_003}


def test_a_cell_says_truly_what_training_has_met(tmp_path: Path) -> None:
    learnt = {family.name for family in families_of(Split.TRAIN)}
    source = MicroRepoSource()
    for split, cells in (
        (Split.TRAIN, {Cell.BOTH_SEEN}),
        (Split.DEV, {Cell.BOTH_SEEN, Cell.UNSEEN_FAMILY}),
        (Split.TEST, set(Cell)),
    ):
        tasks = [source.make(split, index, 1, tmp_path / str(index))[0] for index in range(100)]
        assert {task.cell for task in tasks} == cells
        for task in tasks:
            assert (task.family in learnt) is task.cell.family_seen
            assert task.cell.family_seen or task.family in {family.name for family in families_of(split)}
            assert task.kind in (SEEN_KINDS if task.cell.kind_seen else UNSEEN_KINDS)
        assert {task.kind for task in tasks} == set(KINDS if split is Split.TEST else SEEN_KINDS)


def test_the_test_has_the_cells_that_the_recipe_asks_for(tmp_path: Path) -> None:
    recipe = TasksRecipe(train=1, dev=1, test=12, test_cells=CellsRecipe(
        both_seen=0.0, unseen_family=0.25, unseen_kind=0.75, both_unseen=0.0))  # fmt: skip
    tasks = [task for task in generate_tasks(recipe, 2, tmp_path) if task.split is Split.TEST]
    assert [task.cell for task in tasks].count(Cell.UNSEEN_KIND) == 9
    assert [task.cell for task in tasks].count(Cell.UNSEEN_FAMILY) == 3


@settings(deadline=None)
@given(st.integers(1, 400), st.lists(st.integers(1, 20), min_size=4, max_size=4))
def test_any_number_of_tasks_has_its_shares_of_cells(count: int, weights: list[int]) -> None:
    shares = {cell: weight / sum(weights) for cell, weight in zip(Cell, weights, strict=True)}
    drawn = Counter(cell_at(index, shares) for index in range(count))
    assert all(abs(drawn[cell] - share * count) < 3 for cell, share in shares.items())


def test_a_cell_is_kept_on_disk_and_never_shown(tmp_path: Path) -> None:
    (task,) = make_tasks(open_source("microrepo"), Split.TEST, 1, 1, tmp_path)
    assert read_task(task.directory, {Split.TEST}).cell is task.cell is Cell.BOTH_SEEN
    shown = {name: data for name, data in contents(task.directory).items() if name != "task.toml"}
    assert not [name for name, data in shown.items() if b"both_seen" in data]
    (task.directory / "task.toml").write_text((task.directory / "task.toml").read_text().replace("both_seen", "most"))
    with pytest.raises(TaskError, match=r"metadata.etude.cell: expected both_seen or .*, found 'most'"):
        read_task(task.directory, {Split.TEST})


def test_a_source_of_ones_own_is_registered_by_name() -> None:
    with pytest.raises(UnknownSource, match=r"there are: .*microrepo"):
        open_source("mine")
    with pytest.raises(ValueError, match="already"):
        register_source("microrepo", MicroRepoSource)
