"""Nothing that trains may hold a function of a dev or test task."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from etude.corpus import Document, Gathered
from etude.lineage import contamination
from etude.lineage.contamination import require_separate, task_hashes, without_held_out
from etude.lineage.state import LineageError
from etude.recipe.acting import TasksRecipe
from etude.tasks import Split, Task, apply_diff, generate_tasks, read_files, reference_diff
from etude.tasks.overlap import code_in


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[Task]:
    return generate_tasks(TasksRecipe(train=12, dev=4, test=6), 5, tmp_path_factory.mktemp("tasks"))


def sources(task: Task) -> dict[str, str]:
    files = {name: data.decode() for name, data in read_files(task.directory).items()}
    sound = apply_diff(files, reference_diff(task))
    return {name: text for name, text in sound.items() if name != "check.py"}


def document(text: str, source: str = "generated") -> Document:
    return Document(text, "code", source, "test 1", "here")


def test_generated_tasks_are_separate(tasks: list[Task]) -> None:
    require_separate(tasks)


def test_a_train_task_that_is_a_test_task_in_disguise_is_refused(tasks: list[Task], tmp_path: Path) -> None:
    test = next(task for task in tasks if task.split is Split.TEST)
    proven = tmp_path / "separate"
    require_separate(tasks, proven)
    told = f"the train task copy holds a function of the test task {test.id}"
    with pytest.raises(LineageError, match=told):
        require_separate([*tasks, replace(test, id="copy", split=Split.TRAIN)], proven)


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
    gathered = Gathered([*map(document, stolen), *honest], list(map(document, listed)), [])
    clean, dropped = without_held_out(gathered, held_out)
    assert clean.train == honest
    assert clean.valid == []
    assert dropped == {"generated": len(stolen) + len(listed)}


def test_no_generated_document_holds_a_held_out_function(tasks: list[Task]) -> None:
    from etude.tasks import function_hashes
    from etude.tasks.microrepo.documents import make_document

    forbidden = task_hashes(task for task in tasks if task.split is not Split.TRAIN)
    seen = 0
    for index in range(400):
        for code in code_in(make_document(3, index).text):
            hashes = function_hashes(code)
            seen += len(hashes)
            assert not hashes & forbidden
    assert seen > 300, "documents hold functions that can be compared"
