"""Nothing that trains may hold a function of a dev or test task."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from etude.corpus import Document
from etude.lineage import contamination
from etude.lineage.contamination import TaskCode, require_separate, task_functions
from etude.lineage.state import LineageError
from etude.recipe.acting import TasksRecipe
from etude.tasks import Cell, Split, Task, apply_diff, function_hashes, generate_tasks, read_files, reference_diff
from etude.tasks.overlap import code_in


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[Task]:
    return generate_tasks(TasksRecipe(train=12, dev=4, test=8), 5, tmp_path_factory.mktemp("tasks"))


def sources(task: Task) -> dict[str, str]:
    files = {name: data.decode() for name, data in read_files(task.directory).items()}
    sound = apply_diff(files, reference_diff(task))
    return {name: text for name, text in sound.items() if name != "check.py"}


def document(text: str, source: str = "generated") -> Document:
    return Document(text, "code", source, "test 1", "here")


def test_a_train_task_that_is_a_test_task_in_disguise_is_refused(tasks: list[Task], tmp_path: Path) -> None:
    test = next(task for task in tasks if task.split is Split.TEST)
    proven = tmp_path / "separate"
    require_separate(tasks, proven)
    told = f"the train task copy holds a function of the test task {test.id}"
    with pytest.raises(LineageError, match=told):
        require_separate([*tasks, replace(test, id="copy", split=Split.TRAIN)], proven)


@pytest.fixture(scope="module")
def twin(tasks: list[Task]) -> Task:
    """A test task of a family that train tasks are of, one of which it looks like."""
    return next(task for task in tasks if task.split is Split.TEST and task.cell is Cell.BOTH_SEEN)


def rewritten(task: Task, folder: Path, change: Callable[[str], str]) -> Task:
    """A train task with the same workspace and solution, but for what `change` does to each line."""
    directory = folder / "rewritten"
    shutil.copytree(task.directory, directory)
    for file in [*directory.rglob("*.py"), directory / "solution" / "patch.diff"]:
        if file.name != "check.py" and "tests" not in file.parts:
            file.write_text("".join(change(line) for line in file.read_text().splitlines(keepends=True)))
    return replace(task, id="rewritten", split=Split.TRAIN, cell=Cell.BOTH_SEEN, kind="op", directory=directory)


def with_other_numbers(line: str) -> str:
    return line if line.startswith("@@") else re.sub(r"\d+", lambda number: f"7{number[0]}", line)


def test_of_a_seen_family_other_numbers_may_be_learnt_and_other_names_may_not(
    tasks: list[Task], twin: Task, tmp_path: Path
) -> None:
    other = rewritten(twin, tmp_path / "a", with_other_numbers)
    require_separate([*tasks, other])
    assert {one.shape for one in task_functions(other)} == {one.shape for one in task_functions(twin)}
    for name, change in (("b", renamed), ("c", lambda line: line)):
        with pytest.raises(LineageError, match=f"the train task rewritten holds a function of the test task {twin.id}"):
            require_separate([*tasks, rewritten(twin, tmp_path / name, change)])


def test_of_an_unseen_family_other_numbers_hide_nothing(tasks: list[Task], tmp_path: Path) -> None:
    test = next(task for task in tasks if task.cell is Cell.UNSEEN_FAMILY and task.split is Split.TEST)
    shapes = {one.shape for one in task_functions(test)}
    alike = [task.id for task in tasks if shapes & {one.shape for one in task_functions(task)}]
    with pytest.raises(LineageError, match=f"holds a function of the test task ({'|'.join(alike)})"):
        require_separate([*tasks, replace(rewritten(test, tmp_path, with_other_numbers), family="other")])


def test_a_cell_that_is_not_true_is_refused(tasks: list[Task]) -> None:
    train = next(task for task in tasks if task.split is Split.TRAIN)
    for cell, change, told in (
        (Cell.UNSEEN_FAMILY, {"family": train.family}, f"an unseen family, '{train.family}'"),
        (Cell.UNSEEN_KIND, {"kind": train.kind}, f"an unseen kind, '{train.kind}'"),
    ):
        test = next(task for task in tasks if task.split is Split.TEST and task.cell is cell)
        with pytest.raises(LineageError, match=f"the test task {test.id} is marked as having {told}"):
            require_separate([replace(test, **change), *(task for task in tasks if task is not test)])


def test_a_set_that_was_found_separate_is_not_looked_through_again(
    tasks: list[Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_separate(tasks, tmp_path / "separate")
    monkeypatch.setattr(contamination, "task_functions", lambda task: pytest.fail("looked again"))
    require_separate(list(reversed(tasks)), tmp_path / "separate")


def renamed(text: str) -> str:
    """The same function under another name: hashes must see through it."""
    return text.replace("def ", "def renamed_")


def test_documents_that_hold_a_held_out_function_are_dropped(tasks: list[Task]) -> None:
    held_out = [task for task in tasks if task.split is not Split.TRAIN]
    train = next(task for task in tasks if task.split is Split.TRAIN)
    stolen = [renamed(text) for task in held_out for text in sources(task).values() if "def " in text]
    listed = ["FAIL f(1) gave 2\nread a.py\n" + "\n".join(f"{n} {line}" for n, line in enumerate(text.split("\n"), 1))
              for text in stolen]  # fmt: skip
    honest = [document(text) for text in sources(train).values()] + [document("def f(x):\n    print(x)\n", "stdlib")]
    is_contaminated = TaskCode.of(held_out, ())
    assert all(is_contaminated(document(text)) for text in [*stolen, *listed])
    assert not any(map(is_contaminated, honest))


def test_a_document_of_the_users_code_may_hold_no_solution_of_a_train_task_but_what_was_there_before(
    tasks: list[Task],
) -> None:
    train = next(task for task in tasks if task.split is Split.TRAIN)
    files = {name: data.decode() for name, data in read_files(train.directory).items() if name != "check.py"}
    solved = sources(train)
    (changed,) = [name for name, text in files.items() if solved[name] != text]
    is_contaminated = TaskCode.of((), [train])

    def held(text: str, source: str) -> bool:
        return is_contaminated(Document(text, "code", source, "test 1", "a/file.py"))

    assert held(renamed(solved[changed]), "mine")
    assert not held(solved[changed], "generated"), "these are made from train tasks"
    assert not any(held(text, "mine") for text in files.values())
    readme = Document(f"# What to do\n\n{train.instruction}\n", "code", "mine", "test 1", "README.md")
    assert is_contaminated(readme) == (len(train.instruction.split()) > 13)


def test_documents_may_hold_seen_families_with_other_numbers(tasks: list[Task], twin: Task) -> None:
    held_out = [task for task in tasks if task.split is not Split.TRAIN]
    same = [text for text in sources(twin).values() if "def " in text]
    other = ["".join(map(with_other_numbers, text.splitlines(keepends=True))) for text in same]
    is_contaminated = TaskCode.of(held_out, ())
    assert all(is_contaminated(document(text)) for text in same)
    assert not any(is_contaminated(document(text)) for text in other)


def test_no_generated_document_holds_a_held_out_function(tasks: list[Task]) -> None:
    from etude.tasks.sources.microrepo.documents import make_document

    made = [document(make_document(3, index).text) for index in range(400)]
    held_out = [task for task in tasks if task.split is not Split.TRAIN]
    assert not any(map(TaskCode.of(held_out, ()), made))
    held = [found for one in made for code in code_in(one.text) for found in function_hashes(code)]
    assert len(held) > 300, "documents hold functions that can be compared"
