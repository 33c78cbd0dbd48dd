"""From rows to task directories: environments, references, hidden tests, and what is refused by name."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from etude.tasks import Split, Task, TaskError, list_tasks, read_task, reference_diff
from etude.tasks.diff import apply_diff
from etude.tasks.directory import task_digest
from etude.tasks.formats.swebench import import_rows
from etude.tasks.verifiers import open_verifier

from . import repository as made
from .repository import Repository

IMAGE = "registry.example/swebench/sweb.eval.x86_64.{id}:latest"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return made.make_repository(tmp_path_factory.mktemp("clone") / "ledger")


def imported(folder: Path, *rows: dict[str, Any], **options: Any) -> list[Task]:
    found = import_rows(made.write_rows(folder / "rows.jsonl", *rows), folder / "tasks", **options)
    assert not found.refused
    return list(found.tasks)


def refusal(folder: Path, row: dict[str, Any], **options: Any) -> str:
    found = import_rows(made.write_rows(folder / "rows.jsonl", row), folder / "tasks", **options)
    assert not found.tasks
    (reason,) = found.refused.values()
    return reason


def test_a_task_from_a_clone_has_all_its_files(tmp_path: Path, repository: Repository) -> None:
    before = repository.git("status", "--porcelain"), repository.git("rev-parse", "HEAD")
    (task,) = imported(tmp_path, made.classic(repository), clones=repository.folder)
    assert before == (repository.git("status", "--porcelain"), repository.git("rev-parse", "HEAD"))
    again = read_task(task.directory, {task.split})
    assert (again.id, again.family, again.kind, again.category) == (task.id, "acme/ledger", "swe-bench", "debugging")
    assert again.directory == tmp_path / "tasks" / task.split / task.id
    assert again in list_tasks(tmp_path / "tasks", task.split)
    assert again.instruction == "parse('3.5') gives 305, expected 350"
    assert again.provenance["commit"] == repository.base
    assert again.provenance["passed_over"] == ["[100%]"]
    workspace = {
        path.relative_to(task.directory / "environment/repo").as_posix(): path.read_text()
        for path in (task.directory / "environment/repo").rglob("*")
        if path.is_file()
    }
    assert workspace == repository.files()
    assert apply_diff(workspace, reference_diff(task))["ledger/money.py"] == made.RIGHT
    assert (task.directory / "tests/files/tests/test_parse.py").read_text() == made.PYTEST
    assert "two digits" not in "".join(path.read_text() for path in task.directory.rglob("*") if path.is_file())
    verifier = open_verifier(again)
    assert verifier.protects("tests/test_parse.py")
    assert not verifier.protects("ledger/money.py")


def test_what_is_there_and_the_same_stays(tmp_path: Path, repository: Repository) -> None:
    def again(**options: Any) -> tuple[str, bool]:
        (task,) = imported(tmp_path, made.classic(repository), **options)
        kept = (task.directory / "evidence/gate.json").exists()
        (task.directory / "evidence").mkdir(exist_ok=True)
        (task.directory / "evidence/gate.json").write_text("{}")
        return task_digest(task), kept

    first, kept = again(clones=repository.folder)
    assert not kept
    assert again(clones=repository.folder) == (first, True), "with what a gate found out"
    other, kept = again(image=IMAGE)
    assert other != first
    assert not kept
    assert again(image=IMAGE) == (other, True)
    assert again(image=IMAGE, python="python3")[1] is False


def test_rows_are_all_read_before_one_is_written(tmp_path: Path, repository: Repository) -> None:
    rows = made.write_rows(tmp_path / "rows.jsonl", made.classic(repository), made.classic(repository, "b", patch=5))
    with pytest.raises(TaskError, match="line 2: patch"):
        import_rows(rows, tmp_path / "tasks", image=IMAGE)
    assert not (tmp_path / "tasks").exists()


def test_all_tasks_of_a_repository_are_on_one_side(tmp_path: Path, repository: Repository) -> None:
    rows = [made.classic(repository, f"acme__ledger-{number}") for number in range(3)]
    rows += [made.rebench_v2(repository, instance_id="x", repo="Acme/Ledger"), made.pro(repository)]
    tasks = imported(tmp_path, *rows, clones=repository.folder)
    assert len({(task.family, task.split) for task in tasks}) == 1
    assert set(Split) & {task.split for task in tasks}


@pytest.mark.parametrize(
    ("variant", "image", "workdir", "python"),
    [
        ("classic", "registry.example/swebench/sweb.eval.x86_64.acme_1776_ledger-7:latest", "/testbed", "testbed"),
        ("rebench", "registry.example/rebench/sweb.eval.x86_64.acme_1776_ledger-7", "/testbed", "testbed"),
        ("rebench_v2", "registry.example/v2/ledger:7", "/ledger", "python3"),
        ("pro", "registry.example/pro:acme.ledger-7", "/app", "python3"),
    ],
)
def test_images_by_name(
    tmp_path: Path, repository: Repository, variant: str, image: str, workdir: str, python: str
) -> None:
    templates = {"classic": IMAGE, "pro": "registry.example/pro:{tag}"}
    row = getattr(made, variant)(repository)
    (task,) = imported(tmp_path, row, image=templates.get(variant, ""))
    config = tomllib.loads((task.directory / "task.toml").read_text())
    assert config["environment"] == {"workdir": workdir, "docker_image": image}
    assert python in task.verifier["python"]
    assert (task.directory / "tests/test.patch").read_text().count("+++ b/tests/test_parse.py") == 1
    assert not (task.directory / "tests/files").exists()
    expected = json.loads((task.directory / "tests/expected.json").read_text())
    assert expected["fail_to_pass"] == sorted(made.PYTEST_IDS["FAIL_TO_PASS"])
    assert expected["pass_to_pass"] == sorted(made.PYTEST_IDS["PASS_TO_PASS"][:-1])
    assert open_verifier(task).protects("tests/test_parse.py")


def test_what_the_tests_patch_names_is_no_business_of_a_solution(tmp_path: Path, repository: Repository) -> None:
    data = "--- /dev/null\n+++ b/data/sums.txt\n@@ -0,0 +1 @@\n+3.5 350\n"
    row = made.classic(repository, test_patch=repository.test_patch + data)
    script = made.classic(repository, eval_script=SCRIPT + data, log_parser="parse_log_django", **DJANGO)
    for options in ({"image": IMAGE}, {"clones": repository.folder}):
        for given in (row, script):
            (task,) = imported(tmp_path, given, **options)
            verifier = open_verifier(task)
            assert verifier.protects("data/sums.txt")
            assert not verifier.protects("data/other.txt")
    (task,) = imported(tmp_path, row, image=IMAGE)
    assert open_verifier(task).protects("data"), "in the way of it"


def test_an_image_of_sound_code_is_given_the_bug(tmp_path: Path) -> None:
    repository, patch = made.make_smith_repository(tmp_path / "ledger")
    (task,) = imported(tmp_path, made.smith(repository, patch))
    lines = (task.directory / "environment/Dockerfile").read_text().split("\n")
    assert lines[0] == "FROM registry.example/smith.x86_64.acme_1776_ledger"
    assert "git apply" in lines[3]
    bug = (task.directory / "environment/bug.patch").read_text()
    broken = apply_diff({"ledger/money.py": made.WRONG}, bug.replace("index ", "index ", 1))
    assert broken == {"ledger/money.py": made.BROKEN}
    assert apply_diff(broken, reference_diff(task)) == {"ledger/money.py": made.WRONG}


def test_a_clone_beside_an_image_tells_more(tmp_path: Path) -> None:
    repository = made.make_repository(tmp_path / "ledger")
    git = repository.git
    (repository.folder / "link").symlink_to("README.md")
    base = made.commit(repository.folder, {}, "a link")
    assert "link is a link" in refusal(tmp_path, made.classic(repository, base_commit=base), clones=repository.folder)
    git("mv", "ledger/money.py", "ledger/cents.py")
    made.commit(repository.folder, {}, "moved")
    patch = git("diff", "-M", base, "HEAD")
    assert "rename from" in patch
    new = "--- /dev/null\n+++ b/tests/test_new.py\n@@ -0,0 +1 @@\n+import ledger.cents\n"
    row = made.classic(repository, base_commit=base, patch=patch, test_patch=new)
    assert "of a file whose contents are not known" in refusal(tmp_path, row, image=IMAGE)
    (task,) = imported(tmp_path, row, image=IMAGE, clones=repository.folder)
    assert set(apply_diff({"ledger/money.py": made.RIGHT}, reference_diff(task))) == {"ledger/cents.py"}
    assert not (task.directory / "environment").exists()
    assert (task.directory / "tests/files/tests/test_new.py").read_text() == "import ledger.cents\n"
    smith, bug = made.make_smith_repository(tmp_path / "smith")
    (task,) = imported(tmp_path, made.smith(smith, bug), image="registry.example/x", clones=smith.folder)
    lines = (task.directory / "environment/Dockerfile").read_text().split("\n")
    assert lines[4] == "RUN rm -f -- tests/test_money.py", "the agent is not to see what comes back at grading"
    assert (task.directory / "tests/files/tests/test_money.py").exists()


def test_a_task_repository_brings_its_dockerfile_and_assets(tmp_path: Path, repository: Repository) -> None:
    source = made.write_task_repository(tmp_path / "bench", made.classic(repository), "FROM base.example/x\n")
    (task,) = import_rows(source, tmp_path / "tasks").tasks
    names = {path.relative_to(task.directory).as_posix() for path in task.directory.rglob("*") if path.is_file()}
    assert names == {
        "task.toml",
        "instruction.md",
        "environment/Dockerfile",
        "solution/patch.diff",
        "tests/expected.json",
        "tests/test.patch",
        "tests/files/tests/expected.bin",
    }


DJANGO = {
    "repo": "django/django",
    "FAIL_TO_PASS": '["test_a (basic.tests.ModelTest)"]',
    "PASS_TO_PASS": '["A test that tells of itself."]',
}
SCRIPT = "#!/bin/bash\nset -uxo pipefail\n: '>>>>> Start Test Output'\ntrue\n: '>>>>> End Test Output'\n"


def test_a_runner_of_its_own_is_run_by_the_rows_script(tmp_path: Path, repository: Repository) -> None:
    row = made.classic(repository, eval_script=SCRIPT, log_parser="parse_log_django", **DJANGO)
    (task,) = imported(tmp_path, row, image=IMAGE)
    assert task.verifier == {"type": "eval-script", "log_parser": "parse_log_django"}
    assert (task.directory / "tests/eval.sh").read_text() == SCRIPT
    assert not open_verifier(task).sealed


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (DJANGO, "it has no eval_script"),
        ({"FAIL_TO_PASS": ["TestParse/tenths"]}, "is not an id of pytest, unittest or node"),
        ({**DJANGO, "eval_script": SCRIPT, "log_parser": "parse_log_redis"}, "its log is read by 'parse_log_redis'"),
        ({"problem_statement": ""}, "an agent would have no instruction"),
        ({"patch": "diff --git a/p.png b/p.png\nBinary files a/p.png and b/p.png differ\n"}, "a binary part"),
        (
            {"patch": "diff --git a/a b/b\nrename from a\nrename to b\n"},
            "a rename to b of a file whose contents are not known",
        ),
    ],
)
def test_rows_that_are_refused_by_name(
    tmp_path: Path, repository: Repository, changes: dict[str, Any], said: str
) -> None:
    assert said in refusal(tmp_path, made.classic(repository, **changes), image=IMAGE)


def test_a_row_without_an_environment_is_refused(tmp_path: Path, repository: Repository) -> None:
    assert "--image registry.example/name:{id}" in refusal(tmp_path, made.classic(repository))
    assert "dockerhub_tag" in refusal(tmp_path, made.classic(repository), image="registry.example/x:{tag}")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"base_commit": "f" * 40}, "line 1: base_commit: expected a commit of"),
        (
            {"patch": "--- a/ledger/money.py\n+++ b/ledger/money.py\n@@ -1 +1 @@\n-x\n+y\n"},
            "line 1: patch: expected a diff of",
        ),
        ({"patch": "nothing\n"}, "line 1: patch: expected a diff that changes files"),
        ({"patch": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n x\n y\n"}, "line 1: patch: expected a unified diff: "),
        (
            {"test_patch": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-x\n+y\n"},
            "line 1: test_patch: expected a diff of acme/ledger at",
        ),
        ({"repo": "acme/other"}, "expected a clone of acme/other"),
    ],
)
def test_a_row_that_does_not_fit_its_clone(
    tmp_path: Path, repository: Repository, changes: dict[str, Any], said: str
) -> None:
    clones = tmp_path / "clones"
    clones.mkdir()
    (clones / "ledger").symlink_to(repository.folder)
    rows = made.write_rows(tmp_path / "rows.jsonl", made.classic(repository, **changes))
    with pytest.raises(TaskError) as raised:
        import_rows(rows, tmp_path / "tasks", clones=clones)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_some_rows_by_their_ids(tmp_path: Path, repository: Repository) -> None:
    rows = [made.classic(repository, f"acme__ledger-{number}") for number in range(3)]
    source = made.write_rows(tmp_path / "rows.jsonl", *rows)
    told: list[tuple[int, int]] = []
    ids = ["acme__ledger-1", "acme__ledger-2"]
    found = import_rows(source, tmp_path / "tasks", image=IMAGE, only=ids, on_progress=lambda *pair: told.append(pair))
    assert [task.id for task in found.tasks] == ids
    assert told == [(1, 2), (2, 2)]
    with pytest.raises(TaskError, match="there are none: acme__ledger-9"):
        import_rows(source, tmp_path / "tasks", image=IMAGE, only=["acme__ledger-9"])
    made.write_rows(source, rows[0], rows[0])
    with pytest.raises(TaskError, match=r"line 2: instance_id: expected different ids, .*line 1"):
        import_rows(source, tmp_path / "tasks", image=IMAGE)


def test_a_test_command_is_run_as_a_script(tmp_path: Path, repository: Repository) -> None:
    row = made.rebench_v2(repository, language="go")
    row |= {"FAIL_TO_PASS": ["TestParse"], "PASS_TO_PASS": ["TestShow"]}
    row["install_config"] = {"test_cmd": ["go build ./...", "go test -v ./..."], "log_parser": "parse_log_gotest"}
    (task,) = imported(tmp_path, row)
    assert task.verifier == {"type": "eval-script", "log_parser": "parse_log_gotest"}
    script = (task.directory / "tests/eval.sh").read_text().split("\n")
    assert script[1:3] == ["cd /ledger", "echo '>>>>> Start Test Output'"]
    assert script[3:5] == ["go build ./...", "go test -v ./..."]
    assert (task.directory / "tests/test.patch").exists(), "it does not apply the tests itself"
    assert open_verifier(task).protects("tests/test_parse.py")
