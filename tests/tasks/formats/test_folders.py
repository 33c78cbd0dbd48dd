"""Harbor folders in and out: whole, unchanged, and nothing that leads out of them."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from etude.tasks import Split, Task, TaskError, list_tasks, read_task, split_of, task_digest
from etude.tasks.directory import find_tasks, read_files
from etude.tasks.formats.folders import export_harbor, import_harbor

from .harbor_tasks import VERSIONS, greeting, two_steps


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    folder = tmp_path / "foreign"
    greeting(folder / "one", VERSIONS["1.1"] + "[metadata.theirs]\nkept = [1, 2]\n")
    two_steps(folder / "deep" / "two")
    return folder


def test_every_task_below_a_folder_comes_in_by_its_split(tmp_path: Path, foreign: Path) -> None:
    shown: list[int] = []
    brought = import_harbor(foreign, tmp_path / "in", on_progress=lambda done, total: shown.append(10 * done + total))
    assert shown == [12, 22]
    one, two = sorted(brought, key=lambda task: task.id)
    assert one.split == split_of("org/greet")
    assert one.directory == tmp_path / "in" / one.split / "one"
    assert (one.verifier, one.provenance) == ({"type": "harbor"}, {"source": "harbor", "name": "org/greet"})
    assert {task.id for split in Split for task in list_tasks(tmp_path / "in", split)} == {"one", "two"}
    assert read_files(two.directory, "steps") == read_files(foreign / "deep/two", "steps")
    config = tomllib.loads((one.directory / "task.toml").read_text())
    assert config["metadata"]["theirs"] == {"kept": [1, 2]}
    assert config["task"] == tomllib.loads(VERSIONS["1.1"])["task"]


def test_what_is_there_already_stays_and_is_not_overwritten(tmp_path: Path, foreign: Path) -> None:
    (task,) = import_harbor(foreign / "one", tmp_path / "in")
    before = (task.directory / "task.toml").stat()
    assert import_harbor(foreign / "one", tmp_path / "in")[0].directory == task.directory
    assert (task.directory / "task.toml").stat() == before
    (foreign / "one/tests/test.sh").write_text("#!/bin/sh\n")
    with pytest.raises(TaskError, match="there is another task already"):
        import_harbor(foreign / "one", tmp_path / "in")


def test_what_somebody_else_calls_evidence_stays_outside(tmp_path: Path, foreign: Path) -> None:
    (foreign / "one/evidence").mkdir()
    (foreign / "one/evidence/gate.json").write_text('{"survived": true}')
    (foreign / "one/tests/evidence").write_text("a file of the tests")
    (task,) = import_harbor(foreign / "one", tmp_path / "in")
    assert not (task.directory / "evidence").exists()
    assert (task.directory / "tests/evidence").exists()


def test_one_bad_task_and_none_is_written(tmp_path: Path, foreign: Path) -> None:
    (foreign / "deep/two/task.toml").write_text("agent = 3\n")
    with pytest.raises(TaskError, match=r"deep/two/task.toml: agent: expected a table, found 3"):
        import_harbor(foreign, tmp_path / "in")
    assert not (tmp_path / "in").exists()


def test_two_tasks_of_one_name_are_refused(tmp_path: Path, foreign: Path) -> None:
    greeting(foreign / "deep/one")
    with pytest.raises(TaskError, match="expected a folder name of its own"):
        import_harbor(foreign, tmp_path / "in")


def test_links_stay_links_and_stay_inside(tmp_path: Path, foreign: Path) -> None:
    tests = foreign / "one/tests"
    (tests / "data").mkdir()
    (tests / "data/a").write_text("a")
    (tests / "same").symlink_to("data/a")
    (tests / "folder").symlink_to("data")
    (task,) = import_harbor(foreign / "one", tmp_path / "in")
    assert (task.directory / "tests/same").is_symlink()
    assert {"same", "folder/a", "data/a"} <= read_files(task.directory, "tests").keys()
    (task.directory / "tests/data/a").write_text("b")
    assert read_files(task.directory, "tests")["folder/a"] == b"b"


GOALS = ("/etc/passwd", "../environment/Dockerfile", "nothing", ".", "../tests")


@pytest.mark.parametrize(
    ("folder", "goal"),
    [*(("tests", goal) for goal in GOALS), ("environment", "../tests/test.sh"), ("solution", "/etc/passwd")],
)
def test_a_link_to_elsewhere_or_to_itself_is_refused(tmp_path: Path, foreign: Path, folder: str, goal: str) -> None:
    (foreign / "one" / folder / "link").symlink_to(goal)
    with pytest.raises(TaskError, match=rf"{folder}/link: expected a plain file, found a link to"):
        import_harbor(foreign / "one", tmp_path / "in")


def test_links_that_lead_to_each_other_end(tmp_path: Path, foreign: Path) -> None:
    for here, there in (("x", "y"), ("y", "x")):
        (foreign / "one/tests" / here).mkdir()
        (foreign / "one/tests" / here / "link").symlink_to(f"../{there}")
    with pytest.raises(TaskError, match="found a link"):
        import_harbor(foreign / "one", tmp_path / "in")


def test_tasks_go_out_side_by_side(tmp_path: Path, foreign: Path, train_tasks: list[Task]) -> None:
    tasks = [*train_tasks[:2], *import_harbor(foreign, tmp_path / "in")]
    written = export_harbor(tasks, tmp_path / "out").written
    assert sorted(path.name for path in written) == sorted(task.directory.name for task in tasks)
    assert find_tasks(tmp_path / "out") == sorted(written)
    for task, path in zip(tasks, written, strict=True):
        assert task_digest(read_task(path, {task.split})) == task_digest(task)


def test_what_others_could_not_grade_does_not_go_out_and_the_rest_does(
    tmp_path: Path, foreign: Path, train_tasks: list[Task]
) -> None:
    (foreign / "one/tests/test.sh").unlink()
    plain = read_task(foreign / "one", set(Split))
    tasks = [plain, train_tasks[0], replace(plain, verifier={"type": "review"})]
    found = export_harbor(tasks, tmp_path / "out")
    assert found.written == find_tasks(tmp_path / "out") == [tmp_path / "out" / train_tasks[0].directory.name]
    first, second = found.refused
    assert re.search(r"one/tests/test\.sh: expected a file", first)
    assert re.search(r"the verifier 'review' grades only here \(made for: cases, script, tests\)", second)
