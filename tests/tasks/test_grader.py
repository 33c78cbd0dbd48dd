from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from etude.sandbox.contract import Box, BoxSpec, ExecResult, Feature, Sandboxes, SandboxLost
from etude.sandbox.cpu_share import Share
from etude.tasks import Environments, Grader, Judgement, Task, reference_diff
from etude.tasks.box.run_cases import READY, REPORT
from etude.tasks.cases import Case
from etude.tasks.directory import gated_digest
from etude.tasks.oracle import reference_repair
from etude.tasks.task import TaskLimits
from etude.tasks.verifiers.cases import judge

from .conftest import Grade

CASES = (Case("f-0", "m", "f", (1,), "2"), Case("f-1", "m", "f", (2,), "true"))


def replacing(task: Task, text: str, *, extra: str = "") -> str:
    """A diff that puts code in place of the whole module that holds the bug."""
    file = reference_repair(task).file
    old = (task.directory / "environment/repo" / file).read_text().split("\n")[:-1]
    new = text.rstrip("\n").split("\n")
    body = "".join(f"-{line}\n" for line in old) + "".join(f"+{line}\n" for line in new)
    return f"--- a/{file}\n+++ b/{file}\n@@ -1,{len(old)} +1,{len(new)} @@\n{body}{extra}"


def solved(task: Task) -> str:
    repair = reference_repair(task)
    lines = (task.directory / "environment/repo" / repair.file).read_text().split("\n")
    line = lines[repair.line - 1]
    lines[repair.line - 1] = line[: len(line) - len(line.lstrip())] + repair.right
    return "\n".join(lines)


async def test_the_reference_passes_nothing_fails_and_equal_trees_are_graded_once(
    grader: Grader, train_tasks: list[Task]
) -> None:
    task = train_tasks[0]
    reference = reference_diff(task)
    diffs = (reference, reference, "", replacing(task, solved(task)))
    first, again, nothing, other = await asyncio.gather(*(grader.grade(task, diff) for diff in diffs))
    assert first.passed
    assert again == first
    assert nothing.judgement is Judgement.FAIL
    assert nothing.evidence.failed_tests
    assert other.passed
    assert (grader.stats.graded, grader.stats.remembered) == (2, 2)


WRITE_EVERYWHERE = """\
import os
for fd in range(64):
    try:
        os.write(fd, LINE)
    except OSError:
        pass
os._exit(0)
"""
CHEATS = {
    "ends the process": "import os\nos._exit(0)",
    "exits": "raise SystemExit(0)",
    "kills the verifier": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
    "forges a report": WRITE_EVERYWHERE.replace("LINE", repr(f"\n{REPORT}{{}}\n".encode())),
    "forges rows": WRITE_EVERYWHERE.replace("LINE", repr(b'["x", {"value": "1"}]\n')),
    "agrees with everything": (
        "class Any(int):\n    def __eq__(self, other):\n        return True\n    __hash__ = None\n"
        "def __getattr__(name):\n    return lambda *args: Any()"
    ),
    "leaves a daemon": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\nos._exit(0)",
}


@pytest.mark.parametrize("code", CHEATS.values(), ids=CHEATS.keys())
def test_cheats_do_not_pass_and_are_not_errors(grade: Grade, train_tasks: list[Task], code: str) -> None:
    task = train_tasks[1]
    (verdict,) = grade(task, replacing(task, code))
    assert verdict.judgement in (Judgement.FAIL, Judgement.SUSPECT), verdict


@pytest.mark.parametrize(
    ("seconds", "code", "said"),
    [(120.0, "while True:\n    pass", "signal"), (1.0, "import time\ntime.sleep(600)", "outlasted")],
)
def test_an_endless_loop_fails_by_its_cpu_limit_and_code_that_sleeps_by_the_clock(
    grade: Grade, train_tasks: list[Task], seconds: float, code: str, said: str
) -> None:
    task = replace(train_tasks[1], limits=TaskLimits(verifier_seconds=seconds))
    (verdict,) = grade(task, replacing(task, code))
    assert verdict.judgement is Judgement.FAIL
    assert said in verdict.reason


def test_the_test_surface_is_reset_and_the_touch_recorded(grade: Grade, train_tasks: list[Task]) -> None:
    task = train_tasks[2]
    extra = "--- /dev/null\n+++ b/sitecustomize.py\n@@ -0,0 +1 @@\n+raise SystemExit(0)\n"
    honest, lazy = reference_diff(task) + extra, extra
    (passed, failed) = grade(task, honest, lazy)
    assert passed.passed
    assert passed.evidence.touched_protected == ("sitecustomize.py",)
    assert failed.judgement is Judgement.FAIL


def test_a_deleted_module_and_a_refused_diff_fail(grade: Grade, train_tasks: list[Task]) -> None:
    task = train_tasks[3]
    file = reference_repair(task).file
    old = (task.directory / "environment/repo" / file).read_text().split("\n")[:-1]
    deletion = f"--- a/{file}\n+++ /dev/null\n@@ -1,{len(old)} +0,0 @@\n" + "".join(f"-{line}\n" for line in old)
    (deleted, refused) = grade(task, deletion, "--- a/../x\n+++ b/../x\n@@ -1 +1 @@\n-a\n+b\n")
    assert deleted.judgement is refused.judgement is Judgement.FAIL
    assert "refused" in refused.reason


async def test_faults_of_ours_are_errors_and_are_not_remembered(
    grader: Grader, train_tasks: list[Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(spec: BoxSpec) -> Box:
        raise SandboxLost("the host went away")

    monkeypatch.setattr(grader.sandboxes, "create", lost)
    for _ in range(2):
        verdict = await grader.grade(train_tasks[0], "")
        assert verdict.judgement is Judgement.ERROR
        assert "the host went away" in verdict.reason
    assert (await grader.grade(replace(train_tasks[0], directory=tmp_path), "")).judgement is Judgement.ERROR


def report(rows: list[Any], nonce: str = "n", status: int | None = 0, code: int = 0, **more: Any) -> ExecResult:
    line = REPORT + json.dumps({"nonce": nonce, "status": status, "rows": rows})
    return ExecResult(code, f"{READY}\n{line}\n".encode(), b"", 0.1, **more)


RIGHT = [["f-0", {"value": "2"}], ["f-1", {"value": "true"}]]


@pytest.mark.parametrize(
    ("result", "judgement"),
    [
        (report(RIGHT), Judgement.PASS),
        (report(RIGHT[:1]), Judgement.FAIL),
        (report([RIGHT[0], ["f-1", {"value": "1"}]]), Judgement.FAIL),
        (report([RIGHT[0], ["f-1", {"raised": "ValueError"}]]), Judgement.FAIL),
        (report(RIGHT, code=1), Judgement.FAIL),
        (report(RIGHT, status=-9), Judgement.FAIL),
        (report(RIGHT, nonce="guessed"), Judgement.SUSPECT),
        (report([*RIGHT, RIGHT[0]]), Judgement.SUSPECT),
        (report([*RIGHT, ["g-0", {"value": "1"}]]), Judgement.SUSPECT),
        (report([3]), Judgement.SUSPECT),
        (ExecResult(0, report(RIGHT).stdout + REPORT.encode() + b"{}\n", b"", 0.1), Judgement.SUSPECT),
        (ExecResult(0, f"{READY}\n".encode(), b"", 0.1), Judgement.FAIL),
        (report(RIGHT, timed_out=True), Judgement.FAIL),
        (ExecResult(127, b"", b"python3: not found", 0.1), Judgement.ERROR),
    ],
)
def test_exit_code_report_and_nonce_must_agree(result: ExecResult, judgement: Judgement) -> None:
    assert judge(result, CASES, "n").judgement is judgement


def test_a_host_that_gives_no_time_is_blamed_for_an_expired_clock() -> None:
    late = report(RIGHT, timed_out=True, share=Share(30.0, 29.0, 1.5, 1.5))
    assert judge(late, CASES, "n").judgement is Judgement.ERROR


async def test_a_task_that_changes_in_place_is_graded_as_it_is(
    grader: Grader, train_tasks: list[Task], tmp_path: Path
) -> None:
    task = replace(train_tasks[0], directory=tmp_path / "task")
    shutil.copytree(train_tasks[0].directory, task.directory)
    solution = reference_diff(task)
    cases = task.directory / "tests/cases.json"
    asked = cases.read_bytes()
    assert (await grader.grade(task, solution)).passed
    rows = json.loads(asked)
    for row in rows["cases"]:
        row["expected"] = '"another answer"'
    cases.write_text(json.dumps(rows))
    assert (await grader.grade(task, solution)).judgement is Judgement.FAIL
    cases.write_bytes(asked)
    assert (await grader.grade(task, solution)).passed
    said = replace(task, verifier={"type": "nobody knows it"})
    assert (await grader.grade(said, solution)).judgement is Judgement.ERROR
    repair = reference_repair(task)
    file, wrong = task.directory / "environment/repo" / repair.file, repair.wrong.encode()
    file.write_bytes(file.read_bytes().replace(wrong, wrong + b"  # another file"))
    assert "refused" in (await grader.grade(task, solution)).reason
    file.write_bytes(file.read_bytes().replace(b"  # another file", b""))
    graded = grader.stats.graded
    evidence = {"limits": {"verifier_seconds": 7.5}, "digest": gated_digest(task)}
    (task.directory / "evidence").mkdir()
    (task.directory / "evidence/gate.json").write_text(json.dumps(evidence))
    assert (await grader.grade(task, solution)).passed
    assert grader.stats.graded == graded + 1, "not remembered from under other limits"
    assert (await grader._load(task)).task.limits.verifier_seconds == 7.5
    assert await grader._load(task) is await grader._load(task)


async def test_what_the_base_shows_is_asked_once_for_a_task_as_it_is(
    grader: Grader, sandboxes: Sandboxes, train_tasks: list[Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def base_shows_solution(self: Environments, task: Task) -> bool:
        asked.append(task.directory.name)
        return task.directory.name == "other"

    monkeypatch.setattr(Environments, "base_shows_solution", base_shows_solution)
    tasks = [replace(train_tasks[0], directory=tmp_path / name) for name in ("one", "same", "other")]
    for task in tasks:
        shutil.copytree(train_tasks[0].directory, task.directory)
    (tasks[2].directory / "solution/patch.diff").write_text("another\n")
    second = Feature.SECOND_USER in sandboxes.features
    found = [await grader.grade(task, "", fresh=True) for task in tasks]
    assert [verdict.evidence.sealed for verdict in found] == [second, second, False]
    assert asked == (["one", "other"] if second else [])
