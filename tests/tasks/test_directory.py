from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from etude.tasks import (
    Split,
    SplitViolation,
    Task,
    TaskError,
    TaskLimits,
    list_tasks,
    read_task,
    split_of,
    task_digest,
    write_task,
)
from etude.tasks.directory import FOREIGN_LIMITS, find_tasks, read_files


def make(folder: Path, config: dict[str, Any] | None = None) -> Task:
    return Task(
        id="t", instruction="do it", category="debugging", split=Split.DEV, family="f", kind="op",
        directory=folder / "t", limits=TaskLimits(turns=3), provenance={"seed": 7}, config=config or {},
        deterministic=("python check.py",),
        strict=True,
        without=("shell", "bash"),
    )  # fmt: skip


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_task(make(tmp_path), {"tests/test.sh": b"exit 1\n"})
    task = read_task(tmp_path / "t", {Split.DEV})
    assert (task.instruction, task.limits, task.provenance) == ("do it", TaskLimits(turns=3), {"seed": 7})
    assert task.deterministic == ("python check.py",)
    assert (task.strict, task.without) == (True, ("shell", "bash"))


def test_a_reader_gets_only_the_splits_it_may_see(tmp_path: Path) -> None:
    write_task(make(tmp_path / "dev"), {})
    assert [task.id for task in list_tasks(tmp_path, Split.DEV)] == ["t"]
    with pytest.raises(SplitViolation, match="belongs to dev"):
        read_task(tmp_path / "dev" / "t", {Split.TRAIN})
    assert list_tasks(tmp_path, Split.TEST) == []


def test_a_foreign_harbor_task_is_read_and_its_name_decides_the_split(tmp_path: Path) -> None:
    (tmp_path / "task.toml").write_text(
        'version = "1.0"\n[task]\nname = "org/thing"\n[metadata]\ncategory = "devops"\n'
    )
    (tmp_path / "instruction.md").write_text("Do the thing.\n")
    task = read_task(tmp_path, set(Split))
    assert (task.family, task.category, task.split) == ("org/thing", "devops", split_of("org/thing"))
    assert task.deterministic == (), "nobody vouches for its commands"
    assert (task.strict, task.without) == (False, ())
    assert task.limits == replace(FOREIGN_LIMITS, verifier_seconds=600.0), (
        "a run's own budgets bind, and Harbor's default"
    )


def test_harbors_own_limits_count_where_etudes_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "instruction.md").write_text("x")
    declared = "[agent]\ntimeout_sec = 70\n[verifier]\ntimeout_sec = 30\n"
    (tmp_path / "task.toml").write_text(declared)
    limits = read_task(tmp_path, set(Split)).limits
    assert (limits.wall_seconds, limits.verifier_seconds, limits.turns) == (70, 30, FOREIGN_LIMITS.turns)
    (tmp_path / "task.toml").write_text(declared + "[metadata.etude.limits]\nwall_seconds = 5\n")
    limits = read_task(tmp_path, set(Split)).limits
    assert (limits.wall_seconds, limits.verifier_seconds, limits.turns) == (5, 30, TaskLimits().turns)


def test_a_digest_knows_all_that_decides_a_verdict(tmp_path: Path) -> None:
    files = {"tests/test.sh": b"exit 1\n", "environment/repo/a": b"a", "steps/one/tests/test.sh": b"x", "README": b"r"}
    write_task(make(tmp_path), files)

    def digest() -> str:
        return task_digest(read_task(tmp_path / "t", {Split.DEV}))

    seen = {digest()}
    for change in (
        lambda: (tmp_path / "t/tests/test.sh").write_text("exit 2\n"),
        lambda: (tmp_path / "t/environment/repo/a").chmod(0o755),
        lambda: (tmp_path / "t/steps/one/tests/test.sh").write_text("y"),
        lambda: (tmp_path / "t/tests/more").write_text(""),
        lambda: write_task(make(tmp_path, {"verifier": {"env": {"A": "1"}}}), files),
        lambda: write_task(make(tmp_path, {"environment": {"memory_mb": 3}}), files),
    ):
        change()
        assert digest() not in seen
        seen.add(digest())
    before = digest()
    (tmp_path / "t/README").write_text("other")
    (tmp_path / "t/instruction.md").write_text("other")
    assert digest() == before


def test_tasks_are_found_at_any_depth(tmp_path: Path) -> None:
    for place in ("b", "a/deep", "a/deep/environment/inner", ".hidden"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "task.toml").write_text("")
    (tmp_path / "link").symlink_to("b")
    assert find_tasks(tmp_path) == [tmp_path / "a/deep", tmp_path / "b"]
    assert find_tasks(tmp_path / "b") == [tmp_path / "b"]
    with pytest.raises(TaskError, match="nowhere: expected a folder"):
        find_tasks(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[metadata", "task.toml: expected TOML"),
        ('schema_version = "2.0"', "schema_version: expected 1.x, found '2.0'"),
        ("metadata = 3", "metadata: expected a table, found 3"),
        ("[metadata.etude]\nsplit = 'all'", "metadata.etude.split: expected train, dev or test, found 'all'"),
        ("[metadata.etude.limits]\nturns = true", "metadata.etude.limits.turns: expected a number above 0"),
        ("[metadata]\ncategory = 3", "metadata.category: expected text, found 3"),
        ("[metadata.etude]\nstrict = 'yes'", "metadata.etude.strict: expected true or false, found 'yes'"),
        ("[metadata.etude]\nwithout = ['grpe']", "metadata.etude.without: expected names of tools, found 'grpe'"),
        ("[metadata.etude]\ndeterministic = 'ls'", "metadata.etude.deterministic: expected a list of texts, found"),
    ],
)
def test_a_malformed_task_is_one_error_with_file_field_and_expectation(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "instruction.md").write_text("x")
    (tmp_path / "task.toml").write_text(text)
    with pytest.raises(TaskError) as caught:
        read_task(tmp_path, set(Split))
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_files_and_links_are_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"task\.toml: expected a file"):
        read_task(tmp_path, set(Split))
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo" / "link").symlink_to("/etc/passwd")
    with pytest.raises(TaskError, match="found a link"):
        read_files(tmp_path, "repo")
