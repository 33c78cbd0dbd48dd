"""Rows of every variant, imported from a local clone and graded in real boxes; predictions, and the report."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from etude.tasks import Grader, Judgement, Task, reference_diff
from etude.tasks.formats.swebench import (
    Graded,
    Prediction,
    export_predictions,
    grade_predictions,
    import_rows,
    read_graded,
    read_predictions,
)

from ...conftest import Grade
from . import repository as made
from .repository import Repository

BROKEN = "--- a/ledger/money.py\n+++ b/ledger/money.py\n@@ -5,3 +5,3 @@\n"
BROKEN += '     euros, _, cents = text.partition(".")\n-    return int(euros) * 100 + int(cents or 0)\n'
BROKEN += "+    return 350\n \n"
SCRIPT = "echo '>>>>> Start Test Output'\necho 'test a ... FAILED'\necho '>>>>> End Test Output'\n"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return made.make_repository(tmp_path_factory.mktemp("clones") / "acme__ledger")


def one(folder: Path, row: dict[str, Any], clones: Path) -> Task:
    imported = import_rows(made.write_rows(folder / "rows.jsonl", row), folder / "tasks", clones=clones)
    assert not imported.refused
    (task,) = imported.tasks
    return task


@pytest.mark.parametrize(
    "variant", ["classic", *(pytest.param(name, marks=pytest.mark.slow) for name in ("rebench", "rebench_v2", "pro"))]
)
def test_the_reference_passes_and_nothing_else(
    grade: Grade, tmp_path: Path, repository: Repository, variant: str
) -> None:
    task = one(tmp_path, getattr(made, variant)(repository), repository.folder.parent)
    right, nothing, wrong = grade(task, reference_diff(task), "", BROKEN)
    assert right.passed, right
    # The cut id stands for two tests; what the reference skips may be skipped.
    assert right.evidence.tests_expected == 7
    assert (nothing.judgement, wrong.judgement) == (Judgement.FAIL, Judgement.FAIL), (nothing, wrong)
    assert "tests/test_parse.py::test_parse[with b]" in nothing.evidence.failed_tests
    assert wrong.evidence.failed_tests == (
        "tests/test_parse.py::test_parse[with b]",
        "tests/test_parse.py::test_parse[with blank]",
        "tests/test_parse.py::test_parse_whole",
    )


def test_ids_of_unittest(grade: Grade, tmp_path: Path) -> None:
    repository = made.make_repository(tmp_path / "ledger", made.UNITTEST)
    task = one(tmp_path, made.classic(repository, **made.UNITTEST_IDS), repository.folder)
    right, nothing, wrong = grade(task, reference_diff(task), "", BROKEN)
    assert right.passed, right
    assert right.evidence.tests_expected == 3
    assert nothing.evidence.failed_tests == ("tests.test_money.ParseTest.test_parse_tenths",)
    assert wrong.evidence.failed_tests == ("tests.test_money.ParseTest.test_parse_whole",)


@pytest.mark.slow
def test_a_patch_that_makes_the_bug(grade: Grade, tmp_path: Path) -> None:
    repository, bug = made.make_smith_repository(tmp_path / "clones" / "ledger")
    task = one(tmp_path, made.smith(repository, bug), tmp_path / "clones")
    assert task.family == "acme/ledger"
    workspace = task.directory / "environment/repo"
    assert "* 10 +" in (workspace / "ledger/money.py").read_text()
    assert not (workspace / "tests/test_money.py").exists(), "the tests that show the bug are not the agent's to see"
    right, nothing = grade(task, reference_diff(task), "")
    assert right.passed, right
    assert nothing.judgement is Judgement.FAIL


@pytest.mark.slow
def test_tests_that_are_known_as_a_patch_alone(grade: Grade, tmp_path: Path, repository: Repository) -> None:
    """As with an image of a registry: the workspace is first known when a change is graded."""
    rows = made.write_rows(tmp_path / "rows.jsonl", made.classic(repository))
    (task,) = import_rows(rows, tmp_path / "tasks", image="registry.example/{id}").tasks
    assert not (task.directory / "tests/files").exists()
    # No registry is at hand: the same files stand for the image.
    for name, text in repository.files().items():
        path = task.directory / "environment/repo" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    task.config = {"metadata": {"etude": {"environment": {"base": "host"}}}}
    task.verifier |= {"python": "python3", "pytest": "brought"}
    tampered = "--- /dev/null\n+++ b/tests/test_parse.py\n@@ -0,0 +1,2 @@\n+def test_parse():\n+    pass\n"
    right, nothing, planted = grade(task, reference_diff(task), "", tampered)
    assert right.passed, right
    assert (nothing.judgement, planted.judgement) == (Judgement.FAIL, Judgement.FAIL)
    assert planted.evidence.touched_protected == ("tests/test_parse.py",)


def test_a_reference_that_does_not_fit_is_no_fail_of_the_model(
    grade: Grade, tmp_path: Path, repository: Repository
) -> None:
    task = one(tmp_path, made.classic(repository), repository.folder)
    (task.directory / "solution/patch.diff").write_text(repository.patch.replace("cents or 0", "cents or 1"))
    (verdict,) = grade(task, "")
    assert verdict.judgement is Judgement.ERROR
    assert "solution/patch.diff is no diff of the workspace" in verdict.reason


def predictions(repository: Repository) -> list[Prediction]:
    honest = repository.patch.replace("int((cents + ", "int((cents+")
    patches = {"gold": repository.patch, "honest": honest, "broken": BROKEN, "empty": "", "torn": "diff --git a/x"}
    return [Prediction(f"acme__ledger-{name}", "model/one", patch) for name, patch in patches.items()]


@pytest.mark.slow
async def test_predictions_are_graded_once_and_reported(grader: Grader, tmp_path: Path, repository: Repository) -> None:
    names = ("gold", "honest", "broken", "empty", "torn", "unasked")
    rows = [made.classic(repository, f"acme__ledger-{name}") for name in names]
    source = made.write_rows(tmp_path / "rows.jsonl", *rows)
    tasks = import_rows(source, tmp_path / "tasks", clones=repository.folder).tasks
    given = [*predictions(repository), Prediction("other__thing-1", "model/one", BROKEN)]
    export_predictions(given, tmp_path / "preds.json")
    given = read_predictions(tmp_path / "preds.json")
    evidence = tmp_path / "graded.jsonl"

    async def run(given: list[Prediction]) -> tuple[dict[str, Any], list[Graded]]:
        before, told = len(read_graded(evidence)), list[tuple[int, int]]()
        report = await grade_predictions(
            tasks, given, grader, evidence, concurrency=2, on_progress=lambda *pair: told.append(pair)
        )
        assert told == [(number, len(told)) for number in range(1, len(told) + 1)]
        return report, read_graded(evidence)[before:]

    part, rows = await run(given[:2])
    assert (part["resolved_instances"], len(rows)) == (2, 2)
    with evidence.open("a") as torn:
        torn.write('{"instance_id": "acme__led')  # As a kill leaves it.
    report, rows = await run(given)
    names = sorted(row.instance_id.rpartition("-")[2] for row in rows)
    assert names == ["broken", "torn"], "what was graded before is not graded again"
    resolved = ["acme__ledger-gold", "acme__ledger-honest"]
    unresolved = ["acme__ledger-broken", "acme__ledger-torn"]
    assert report["resolved_ids"] == resolved
    assert report["unresolved_ids"] == unresolved
    assert report["completed_ids"] == sorted(resolved + unresolved)
    assert report["empty_patch_ids"] == ["acme__ledger-empty"]
    assert report["incomplete_ids"] == ["acme__ledger-unasked"]
    assert report["unknown_ids"] == ["other__thing-1"]
    assert report["error_ids"] == report["suspect_ids"] == []
    assert (report["total_instances"], report["submitted_instances"]) == (6, 6)
    assert report["schema_version"] == 2
    assert set(report["failure_reasons"]) == set(unresolved)
    json.dumps(report)


async def test_a_mistake_in_a_task_is_told_in_one_line(grader: Grader, tmp_path: Path, repository: Repository) -> None:
    task = one(tmp_path, made.classic(repository), repository.folder)
    evidence = tmp_path / "graded.jsonl"

    given = [Prediction(task.id, "m", BROKEN)]
    (task.directory / "tests/expected.json").write_text("{")
    report = await grade_predictions([task], given, grader, evidence)
    assert report["error_ids"] == [task.id], "our fault or the task's, and not the model's"
    assert "tests/expected.json: expected JSON" in report["failure_reasons"][task.id]
    evidence.unlink()
    evidence.mkdir()  # Nothing can be written.
    with pytest.raises(OSError, match=r"graded\.jsonl"):
        await grade_predictions([task], given, grader, evidence)


@pytest.mark.slow
async def test_without_a_reference_a_fail_is_a_fail(grader: Grader, tmp_path: Path, repository: Repository) -> None:
    row = made.classic(
        repository, eval_script=SCRIPT, log_parser="parse_log_cargo", FAIL_TO_PASS=["a"], PASS_TO_PASS=[]
    )
    task = one(tmp_path, row, repository.folder)
    (task.directory / "solution/patch.diff").unlink()

    given = [Prediction(task.id, "m", BROKEN)]
    report = await grade_predictions([task], given, grader, tmp_path / "graded.jsonl")
    assert report["unresolved_ids"] == [task.id]


@pytest.mark.slow
async def test_where_the_reference_fails_too_nobody_is_blamed(
    grader: Grader, tmp_path: Path, repository: Repository
) -> None:
    ids = json.dumps([*made.PYTEST_IDS["FAIL_TO_PASS"], "tests/test_parse.py::test_that_is_not_there"])
    task = one(tmp_path, made.classic(repository, FAIL_TO_PASS=ids), repository.folder)

    given = [Prediction(task.id, "m", repository.patch)]
    report = await grade_predictions([task], given, grader, tmp_path / "graded.jsonl")
    assert (report["error_ids"], report["completed_ids"], report["unresolved_ids"]) == ([task.id], [], [])
    assert "the reference does not pass here either: 1 of 8 tests failed" in report["failure_reasons"][task.id]


@pytest.mark.slow
@pytest.mark.parametrize("leak", [False, True])
async def test_an_image_that_is_built(grader: Grader, tmp_path: Path, leak: bool) -> None:
    repository = made.make_repository(tmp_path / "ledger", made.UNITTEST)
    repository.git("reset", "-q", "--hard", repository.base)
    dockerfile = "FROM host\nWORKDIR /testbed\nCOPY --chown=agent ledger.tar /tmp/\n"
    dockerfile += "RUN tar -xf /tmp/ledger.tar -C /testbed && rm /tmp/ledger.tar\n"
    if leak:
        dockerfile += "RUN cd /testbed && git show main@{1}:tests/test_money.py > /home/agent/a\n"
    source = made.write_task_repository(tmp_path / "bench", made.classic(repository), dockerfile)
    folder = source / "tasks/acme__ledger-7"
    (folder / "tests.json").write_text(json.dumps(made.UNITTEST_IDS))
    with tarfile.open(folder / "ledger.tar", "w") as archive:
        archive.add(repository.folder, ".")
    (task,) = import_rows(source, tmp_path / "tasks", python="python3").tasks
    prepared = await grader.environments.prepare(task)
    assert prepared.workdir == "/testbed"
    assert prepared.files["ledger/money.py"].decode() == made.WRONG
    findings = (await grader.environments.prove(task)).findings
    assert {finding.file for finding in findings} == ({"/home/agent/a"} if leak else set()), "not in the history either"
    right, nothing = [await grader.grade(task, diff) for diff in (reference_diff(task), "")]
    assert right.passed, right
    assert nothing.evidence.failed_tests == ("tests.test_money.ParseTest.test_parse_tenths",)
