"""The gate: what it decides and says, that evidence is kept and counts for the task as it is, and that it goes on."""

from __future__ import annotations

import asyncio
import gzip
import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from etude.sandbox.contract import Sandboxes, SandboxLost
from etude.tasks import (
    Grader,
    Judgement,
    Split,
    Task,
    TaskError,
    Verdict,
    gated_digest,
    make_tasks,
    open_source,
    read_task,
    write_task,
)
from etude.tasks.conditions import GATE, USUAL, Conditions, days_later
from etude.tasks.gate import (
    GateOutcome,
    GateResult,
    Run,
    by_source,
    gate_tasks,
    keep_evidence,
    read_evidence,
    reference_diff,
    stored_evidence,
)
from etude.tasks.gate import single as gating
from etude.tasks.gate.busy_machine import CpuLoad
from etude.tasks.gate.concurrent import examine_all
from etude.tasks.limits import FLOORS, limits_from, with_measured_limits
from etude.tasks.verdict import Evidence
from etude.tasks.verifiers.mutation.verifier import MutationConfig
from etude.tasks.verifiers.script.products import BuildConfig
from etude.tasks.verifiers.tests import SuiteConfig

from .conftest import Grade
from .verifiers import projects

RunGate = Callable[..., dict[str, GateResult]]


@pytest.fixture
def run_gate(loop: asyncio.Runner, sandboxes: Sandboxes) -> RunGate:
    return lambda tasks, evidence, **options: loop.run(gate_tasks(tasks, sandboxes, evidence, **options))


def copy_of(task: Task, folder: Path) -> Task:
    shutil.copytree(task.directory, folder)
    return replace(read_task(folder, {task.split}), id=folder.name)


def test_the_gate_decides_keeps_its_evidence_and_goes_on(
    run_gate: RunGate, train_tasks: list[Task], tmp_path: Path
) -> None:
    evidence = tmp_path / "gate.jsonl"
    good, later = (copy_of(task, tmp_path / name) for task, name in zip(train_tasks, ("good", "later"), strict=False))
    useless = copy_of(train_tasks[1], tmp_path / "useless")
    (useless.directory / "solution/patch.diff").write_text("")
    seen: list[tuple[int, int]] = []
    first = run_gate([good, useless], evidence, runs=2, progress=lambda *at: seen.append(at))
    assert first["good"].survived
    assert [run.what for run in first["good"].runs] == ["nothing", "reference", "reference"]
    assert len({run.conditions for run in first["good"].runs}) == 3
    assert first["useless"].outcome is GateOutcome.REFERENCE_FAILS
    assert first["useless"].decided
    assert seen == [(1, 2), (2, 2)]
    with evidence.open("a") as file:
        file.write('{"task": "torn')
    again = run_gate([good, later], evidence, runs=2)
    assert again["good"] == first["good"] == stored_evidence(good)
    assert again["later"].survived
    assert [result.task for result in read_evidence(evidence)][-1] == "later"
    assert len(read_evidence(evidence)) == 3


def test_a_task_is_gated_anew_with_another_reference_or_other_tests(
    run_gate: RunGate, train_tasks: list[Task], tmp_path: Path
) -> None:
    task = copy_of(train_tasks[0], tmp_path / "task")

    def replaced(name: str, old: str, new: str) -> GateOutcome:
        path = task.directory / name
        path.write_text(path.read_text().replace(old, new))
        return run_gate([task], tmp_path / "gate.jsonl", runs=1)["task"].outcome

    sound = reference_diff(task)
    assert replaced("solution/patch.diff", sound, "\n") is GateOutcome.REFERENCE_FAILS
    assert replaced("solution/patch.diff", "\n", sound) is GateOutcome.SURVIVED
    assert replaced("tests/cases.json", '"expected": "', '"expected": "9') is GateOutcome.REFERENCE_FAILS


def test_what_is_malformed_is_named_and_does_not_stop_the_others(
    run_gate: RunGate, train_tasks: list[Task], tmp_path: Path
) -> None:
    tasks = [copy_of(train_tasks[0], tmp_path / name) for name in ("good", "no-cases", "no-reference", "no-text")]
    (tasks[1].directory / "tests/cases.json").write_text("{")
    (tasks[2].directory / "solution/patch.diff").unlink()
    (tasks[3].directory / "solution/other.diff").write_bytes(b"\xff")
    found = run_gate(tasks, tmp_path / "gate.jsonl", runs=1)
    assert [found[task.id].outcome for task in tasks] == [GateOutcome.SURVIVED, *[GateOutcome.BROKEN] * 3]
    assert all(found[name].decided for name in ("no-cases", "no-reference"))
    assert "cases.json: expected JSON" in found["no-cases"].reasons[0]
    assert "expected the reference solution" in found["no-reference"].reasons[0]
    assert "other.diff: expected UTF-8" in found["no-text"].reasons[0]
    with pytest.raises(TaskError, match="expected the reference solution"):
        reference_diff(tasks[2])


def suite_of(folder: Path, test: str, **files: str) -> Task:
    """A task whose hidden test is this one; its reference makes `shop.total` right."""
    made = projects.project(folder, "unittest")
    path = folder / "tests/files/tests/test_prices.py"
    path.write_text(f"import unittest\nfrom shop import prices\n\n\nclass T(unittest.TestCase):\n{test}")
    (folder / "tests/expected.json").write_text(json.dumps({"fail_to_pass": ["tests.test_prices.T.test_it"]}))
    for name, text in files.items():
        (folder / "solution" / name).write_text(text)
    return read_task(made.directory, {Split.TRAIN})


RIGHT = "        self.assertEqual(prices.total([5, 7], 2), 10)\n"


def test_a_suite_that_holds_only_in_some_places_is_flaky(run_gate: RunGate, tmp_path: Path) -> None:
    """Pago Pago has its zone's name from the data base; two of three zones begin with a sign or not."""
    zone = "    def test_it(self):\n        import time\n        self.assertEqual(time.timezone % 3600, 0)\n" + RIGHT
    hashed = "    def test_it(self):\n        self.assertEqual(hash('a') % 2, HASH)\n".replace(
        "HASH", str(hash_under("1") % 2)
    )
    tasks = [suite_of(tmp_path / "zone", zone), suite_of(tmp_path / "hash", hashed + RIGHT)]
    found = run_gate(tasks, tmp_path / "gate.jsonl")
    assert found["zone"].outcome is GateOutcome.FLAKY, found["zone"]
    reference = [run for run in found["zone"].runs if run.what == "reference"]
    assert [run.judgement for run in reference] == [Judgement.PASS, Judgement.FAIL, Judgement.PASS]
    assert reference[1].conditions in found["zone"].reasons[0]
    wanted = [hash_under(seed) % 2 == hash_under("1") % 2 for seed in ("0", "1", "4294967295")]
    assert [run.judgement is Judgement.PASS for run in found["hash"].runs[1:]] == wanted


def hash_under(seed: str) -> int:
    done = subprocess.run(
        ["/usr/bin/python3", "-c", "print(hash('a'))"], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
    )
    return int(done.stdout)


def test_another_valid_solution_must_pass_too(run_gate: RunGate, tmp_path: Path) -> None:
    test = "    def test_it(self):\n" + RIGHT
    other = projects.WRONG.replace("sum(prices) + discount", "-discount + sum(prices)")
    wrong = projects.WRONG.replace("sum(prices) + discount", "sum(prices) * discount")
    path = "shop/prices.py"
    tasks = [
        suite_of(tmp_path / "good", test, **{"other.diff": projects.diff(projects.WRONG, other, path)}),
        suite_of(tmp_path / "narrow", test, **{"other.diff": projects.diff(projects.WRONG, wrong, path)}),
    ]
    found = run_gate(tasks, tmp_path / "gate.jsonl", runs=1)
    assert found["good"].survived, found["good"].reasons
    assert found["good"].runs[-1].what == "other.diff"
    assert found["good"].controls + found["good"].withheld > 0
    assert found["narrow"].outcome is GateOutcome.OTHER_FAILS


def test_an_environment_that_shows_the_solution_is_refused(run_gate: RunGate, tmp_path: Path) -> None:
    made = suite_of(tmp_path / "shown", "    def test_it(self):\n" + RIGHT)
    line = "prices_without_what_is_taken_off = sum(prices) - discount  # the very line\n"
    solved = projects.WRONG.replace(
        "return sum(prices) + discount", line + "    return prices_without_what_is_taken_off"
    )
    (made.directory / "solution/patch.diff").write_text(projects.diff(projects.WRONG, solved, "shop/prices.py"))
    assert run_gate([made], tmp_path / "first.jsonl", runs=1)["shown"].survived
    (made.directory / "environment/repo/old.gz").write_bytes(gzip.compress(solved.encode()))
    found = run_gate([made], tmp_path / "gate.jsonl", runs=1)["shown"]
    assert found.outcome is GateOutcome.LEAKS
    assert "old.gz" in found.reasons[0]


def test_cheats_run_once_per_environment_and_one_that_succeeds_is_named(
    run_gate: RunGate, train_tasks: list[Task], tmp_path: Path
) -> None:
    tried: list[str] = []

    async def cheats(task: Task) -> list[str]:
        tried.append(task.id)
        return ["os._exit(0)"]

    tasks = [copy_of(task, tmp_path / f"task{n}") for n, task in enumerate(train_tasks[:3])]
    assert len({task.family for task in tasks}) > 1
    found = run_gate(tasks, tmp_path / "gate.jsonl", runs=1, cheats=cheats)
    assert len(tried) == 1
    assert {result.outcome for result in found.values()} == {GateOutcome.CHEATED}
    assert "the cheat os._exit(0) succeeds" in found["task0"].reasons


def test_every_repository_over_the_base_of_the_host_is_attacked(run_gate: RunGate, tmp_path: Path) -> None:
    tried: list[str] = []

    async def cheats(task: Task) -> list[str]:
        tried.append(task.family)
        return []

    made = [suite_of(tmp_path / f"task{n}", "    def test_it(self):\n" + RIGHT) for n in range(3)]
    tasks = [replace(task, id=f"task{n}", family=("one", "other")[n // 2]) for n, task in enumerate(made)]
    run_gate(tasks, tmp_path / "gate.jsonl", runs=1, cheats=cheats)
    assert sorted(tried) == ["one", "other"]


class ScriptedGrader(Grader):
    """Answers without boxes."""

    def __init__(self, answer: Callable[[str, Conditions], Verdict]) -> None:
        self.answer, self.asked = answer, list[str]()

    async def grade(self, task: Task, diff: str, *, fresh: bool = False, conditions: Conditions = USUAL) -> Verdict:
        self.asked.append(conditions.name)
        return self.answer(diff, conditions)


MUST_FAIL = Verdict(Judgement.FAIL, "as it must")


@pytest.mark.parametrize(("faults", "judgement"), [(0, "fail"), (gating.ATTEMPTS - 1, "fail"), (99, "error")])
def test_a_fault_of_ours_is_tried_again_and_then_decides_nothing(
    train_tasks: list[Task], monkeypatch: pytest.MonkeyPatch, faults: int, judgement: str
) -> None:
    monkeypatch.setattr(gating, "PAUSE", 0.001)
    answers = chain(repeat(Verdict(Judgement.ERROR, f"{SandboxLost.__name__}: gone"), faults), repeat(MUST_FAIL))
    gate = gating.Gate(ScriptedGrader(lambda *_: next(answers)), GATE[:1], scan=False)
    result = asyncio.run(gate.examine(train_tasks[0]))
    assert result.runs[0].judgement == judgement
    assert result.runs[0].tried == min(faults + 1, gating.ATTEMPTS)
    assert result.decided == (judgement == "fail")
    if not result.decided:
        assert result.outcome is GateOutcome.UNDECIDED
        assert "gone" in result.reasons[0]


def test_a_mistake_of_ours_leaves_its_task_undecided_and_ends_no_gate(train_tasks: list[Task], tmp_path: Path) -> None:
    def mistaken(*_: object) -> Verdict:
        raise ZeroDivisionError("of ours")

    gate = gating.Gate(ScriptedGrader(mistaken), GATE[:1], scan=False)
    tasks = [copy_of(task, tmp_path / f"task{n}") for n, task in enumerate(train_tasks[:2])]
    found = asyncio.run(examine_all(tasks, gate, tmp_path / "gate.jsonl"))
    for task in tasks:
        assert found[task.id].outcome is GateOutcome.UNDECIDED
        assert "ZeroDivisionError: of ours (test_gate.py, line" in found[task.id].reasons[0]


@pytest.mark.parametrize(
    ("verdict", "outcome"),
    [
        (Verdict(Judgement.FAIL, "waited", Evidence(timed_out=True)), GateOutcome.SURVIVED),
        (Verdict(Judgement.FAIL, "a test fails"), GateOutcome.REFERENCE_FAILS),
        (Verdict(Judgement.SUSPECT, "forged, then waited", Evidence(timed_out=True)), GateOutcome.REFERENCE_FAILS),
    ],
)
def test_another_way_is_for_what_waited_alone_and_both_are_kept(
    train_tasks: list[Task], tmp_path: Path, verdict: Verdict, outcome: GateOutcome
) -> None:
    def answer(diff: str, under: Conditions) -> Verdict:
        if not diff:
            return MUST_FAIL
        return verdict if under.fallback else Verdict(Judgement.PASS, "by the other way")

    grader, conditions = ScriptedGrader(answer), days_later(400, "lib")
    gate = gating.Gate(grader, (conditions,), conditions, scan=False)
    result = asyncio.run(gate.examine(train_tasks[0]))
    assert result.outcome is outcome
    aside = outcome is GateOutcome.SURVIVED
    assert grader.asked == [conditions.name] * 2 + [conditions.fallback.name] * aside
    assert [run.set_aside for run in result.runs] == [False] + [True, False] * aside + [False] * (not aside)
    assert result.runs[1].reason == verdict.reason
    assert GateResult.read(json.loads(json.dumps(result.row()))) == result


runs = st.builds(
    Run,
    what=st.sampled_from(["nothing", "reference", "other.diff"]),
    conditions=st.text(max_size=5),
    judgement=st.sampled_from(list(Judgement)),
    reason=st.text(max_size=5),
    tried=st.integers(1, 3),
    set_aside=st.booleans(),
)
results = st.builds(
    GateResult,
    task=st.text(min_size=1, max_size=5),
    digest=st.text(max_size=5),
    source=st.sampled_from(["a", "b"]),
    runs=st.lists(runs, max_size=6).map(tuple),
    leaks=st.lists(st.text(min_size=1, max_size=3), max_size=1).map(tuple),
    cheats=st.lists(st.text(min_size=1, max_size=3), max_size=1).map(tuple),
    broken=st.sampled_from(["", "no file"]),
    limits=st.dictionaries(st.sampled_from(sorted(FLOORS)), st.floats(1, 9)),
)


@given(result=results)
def test_only_what_came_out_as_it_must_survives_and_all_else_has_a_reason(result: GateResult) -> None:
    assert GateResult.read(json.loads(json.dumps(result.row()))) == result
    sound = bool(result.counted) and all(run.as_expected for run in result.counted)
    assert result.survived == (sound and not (result.leaks or result.cheats or result.broken))
    assert result.survived <= result.decided
    assert bool(result.reasons) == (not result.survived) or not result.counted


@settings(max_examples=25)
@given(rows=st.lists(results, max_size=8))
def test_survival_is_counted_by_source(rows: list[GateResult]) -> None:
    table = by_source(rows)
    assert sum(counts["tasks"] for counts in table.values()) == len(rows)
    for source, counts in table.items():
        mine = [row for row in rows if row.source == source]
        assert counts["survived"] == sum(row.survived for row in mine)
        assert counts["open"] == sum(row.survived and not row.sealed for row in mine)
        assert sum(counts.get(outcome.value, 0) for outcome in GateOutcome) == counts["tasks"] == len(mine)


def test_limits_are_three_times_what_was_seen_with_a_floor_and_only_tighten(tmp_path: Path) -> None:
    assert limits_from(8, 5.5, 200 << 20) == {
        "verifier_seconds": 24.0,
        "cpu_seconds": 17.0,
        "memory_mb": 600.0,
    }
    assert limits_from(0.1, 0.1, 1 << 20) == FLOORS
    assert limits_from(1, 1, 0).keys() == {"verifier_seconds", "cpu_seconds"}
    task = projects.project(tmp_path / "task", "unittest", seconds=7.0)
    row = GateResult("task", gated_digest(task), limits=limits_from(8, 5.5, 200 << 20)).row()
    place = task.directory / "evidence/gate.json"
    place.parent.mkdir()
    place.write_text(json.dumps(row))
    tight = with_measured_limits(task)
    assert tight.limits.verifier_seconds == 24
    assert tight.verifier | {"seconds": 7, "memory_mb": 600} == tight.verifier
    assert with_measured_limits(replace(task, verifier={**task.verifier, "seconds": 8.0})).verifier["seconds"] == 8.0
    for damaged in ("{", "[]", '{"limits": {"memory_mb": "1"}, "digest": ""}', '{"limits": 3}'):
        place.write_text(damaged)
        assert with_measured_limits(task) == task


USUAL_OF: dict[str, type[BaseModel]] = {
    **dict.fromkeys(("tests", "swebench", "refactor", "migration"), SuiteConfig),
    "mutation": MutationConfig,
    **dict.fromkeys(("script", "workflow", "dockerfile"), BuildConfig),
}


@pytest.mark.parametrize("kind", USUAL_OF)
def test_cpu_and_memory_of_every_verifier_that_says_them_are_limited(tmp_path: Path, kind: str) -> None:
    usual = {key: field.default for key, field in USUAL_OF[kind].model_fields.items()}
    task = projects.project(tmp_path / kind, "unittest")
    task.verifier = {"type": kind}
    place = task.directory / "evidence/gate.json"
    place.parent.mkdir()

    def tight(seen: int) -> dict[str, object]:
        limits = limits_from(seen, seen, (seen * 50) << 20)
        place.write_text(json.dumps(GateResult("task", gated_digest(task), limits=limits).row()))
        return with_measured_limits(task).verifier

    clock = 10 if kind == "dockerfile" else 6  # Of a build the clock is what was seen.
    assert tight(2) == {"type": kind, "seconds": clock, "memory_mb": min(300, usual["memory_mb"])}
    assert tight(1000) == {"type": kind, "seconds": usual["seconds"], "memory_mb": usual["memory_mb"]}


def test_the_gate_sets_the_limits_of_the_gradings_to_come(run_gate: RunGate, grade: Grade, tmp_path: Path) -> None:
    task = projects.project(tmp_path / "task", "unittest")
    result = run_gate([task], tmp_path / "gate.jsonl", runs=1)["task"]
    assert all(result.limits[name] >= least for name, least in FLOORS.items())
    assert result.runs[1].memory_bytes > 1 << 20
    assert result.runs[1].cpu_seconds > 0
    assert with_measured_limits(task).verifier["memory_mb"] == 256

    (verdict,) = grade(task, reference_diff(task))
    assert verdict.passed


@pytest.mark.slow
async def test_limits_that_were_set_on_a_quiet_machine_hold_on_a_busy_one(
    grader: Grader, train_tasks: list[Task], tmp_path: Path
) -> None:
    """What was seen is some hundredths of a second: three times that would be met by chance."""
    small = copy_of(train_tasks[0], tmp_path / "cases")
    suite = projects.project(tmp_path / "suite", "unittest")
    tasks, load = [small, suite, *make_tasks(open_source("documentation"), Split.TRAIN, 1, 1, tmp_path)], CpuLoad(8)
    found = await gate_tasks(tasks, grader.sandboxes, tmp_path / "gate.jsonl", runs=1)
    for task, result in zip(tasks, found.values(), strict=True):
        keep_evidence(task, replace(result, limits=FLOORS), tmp_path / "kept.jsonl")  # As a machine at rest says.
        assert with_measured_limits(task).limits.verifier_seconds == FLOORS["verifier_seconds"]

    load.begin()
    try:
        graded = (grader.grade(task, reference_diff(task), fresh=True) for task in tasks for _ in range(4))
        verdicts = await asyncio.gather(*graded)
    finally:
        load.end()
    assert [verdict.reason for verdict in verdicts if not verdict.passed] == []


def test_a_task_that_is_made_anew_has_no_evidence(train_tasks: list[Task], tmp_path: Path) -> None:
    task = copy_of(train_tasks[0], tmp_path / "task")
    keep_evidence(task, GateResult("task", gated_digest(task)), tmp_path / "gate.jsonl")
    write_task(task, {"environment/repo/a.py": b"", "tests/cases.json": b""})
    assert stored_evidence(task) is None
