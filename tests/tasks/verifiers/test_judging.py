"""Nothing but a whole agreement passes: every way of lying in the rows, the report or the exit code."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.tasks import Judgement, Verdict
from etude.tasks.verifiers.tests import Exam, RunOutput, judge_run
from etude.tasks.verifiers.tests.exam import Withheld

NONCE = "5ca1ab1e"
EXAM = Exam(
    files={},
    tests={"t1": "one", "t2": "two", "t3": "three"},
    controls={"c1": "one", "c2": "two"},
    withheld={"t3": (Withheld("k", (42,)),)},
    may_skip=frozenset(("two",)),
)
PLAIN = Exam(files={}, tests={"t1": "one", "t2": "two"})
HONEST = {"t1": "passed", "t2": "passed", "t3": "passed", "c1": "failed", "c2": "error"}


def output(
    outcomes: dict[str, str],
    *,
    told: tuple[object, ...] = ("42",),
    end: int | None = None,
    report: Any = "same",
    code: int | None = None,
    extra: tuple[bytes, ...] = (),
    **fields: Any,
) -> RunOutput:
    """What an honest runner says of these outcomes, where nothing else is said."""
    implied = int(any(outcome in ("failed", "error") for outcome in outcomes.values()))
    end = implied if end is None else end
    rows: list[dict[str, object]] = [{"ready": "1"}]
    for test, outcome in outcomes.items():
        rows += [{"value": "k", "is": text} for text in told if test == "t3"]
        rows.append({"test": test, "outcome": outcome, "seconds": 0.1})
    lines = [f"{NONCE} {json.dumps(row)}\n".encode() for row in [*rows, {"end": end}]]
    written = {"nonce": NONCE, "exit": end, "tests": outcomes} if report == "same" else report
    return RunOutput(
        nonce=NONCE,
        code=end if code is None else code,
        rows=b"".join([*lines[:-1], *extra, lines[-1]]),
        report=None if written is None else json.dumps(written).encode(),
        **fields,
    )


def judgement(outcomes: dict[str, str], exam: Exam = EXAM, **lies: Any) -> Judgement:
    return judge_run(exam, output(outcomes, **lies)).judgement


def test_an_honest_solution_passes_and_the_evidence_says_what_was_asked() -> None:
    verdict = judge_run(EXAM, output(HONEST), ("conftest.py",))
    assert verdict.passed
    evidence = verdict.evidence
    assert (evidence.tests_expected, evidence.tests_passed, evidence.controls, evidence.withheld) == (3, 3, 2, 1)
    assert evidence.touched_protected == ("conftest.py",)
    assert evidence.exit_code == 1, "controls fail, and the runner says so"
    assert judgement({"t1": "passed", "t2": "passed"}, PLAIN) is Judgement.PASS


@pytest.mark.parametrize("outcome", ["failed", "error", "xpassed", "skipped", "xfailed"])
@pytest.mark.parametrize("test", ["t1", "t2", "t3"])
def test_what_is_expected_must_have_passed_or_may_be_skipped(test: str, outcome: str) -> None:
    allowed = test == "t2" and outcome in ("skipped", "xfailed")
    assert judgement(HONEST | {test: outcome}) is (Judgement.PASS if allowed else Judgement.FAIL)


@pytest.mark.parametrize("test", ["t1", "t2", "t3"])
def test_a_missing_test_never_passes(test: str) -> None:
    verdict = judge_run(EXAM, output({name: said for name, said in HONEST.items() if name != test}))
    assert verdict.judgement is Judgement.FAIL
    assert verdict.evidence.failed_tests == (EXAM.tests[test],)
    assert "did not run" in verdict.reason


def test_a_control_that_passes_beside_its_original_is_suspect_and_alone_only_wrong() -> None:
    verdict = judge_run(EXAM, output(HONEST | {"c1": "passed"}))
    assert verdict.judgement is Judgement.SUSPECT
    assert verdict.evidence.controls_passed == ("one",)
    assert judgement(HONEST | {"c1": "passed", "t1": "failed"}) is Judgement.FAIL


@pytest.mark.parametrize("outcome", [None, "skipped", "xfailed", "xpassed"])
def test_a_control_must_have_failed(outcome: str | None) -> None:
    said = {name: o for name, o in (HONEST | {"c1": outcome}).items() if o is not None}
    assert judgement(said) is Judgement.SUSPECT


@pytest.mark.parametrize(
    "told", [(), ("41",), (None,), ("",), ("42", "41"), ("x",), ("__import__('os')",), ("(" * 500,), ("1" * 70000,)]
)
def test_what_is_withheld_must_be_told_and_right_each_time(told: tuple[object, ...]) -> None:
    verdict = judge_run(EXAM, output(HONEST, told=told))
    assert verdict.judgement is Judgement.FAIL
    assert verdict.evidence.failed_tests == ("three",)


@pytest.mark.parametrize(
    "line",
    [
        b"garbage\n",
        b'{"test": "t1", "outcome": "passed"}\n',
        b"00000000 {}\n",
        f"{NONCE} nonsense\n".encode(),
        f"{NONCE} []\n".encode(),
        f'{NONCE} {{"ready": "1"}}\n'.encode(),
        f'{NONCE} {{"broken": "no pytest"}}\n'.encode(),
        f'{NONCE} {{"test": "t1", "outcome": "passed"}}\n'.encode(),
        f'{NONCE} {{"test": "t9", "outcome": "splendid"}}\n'.encode(),
        f'{NONCE} {{"test": ["t9"], "outcome": "passed"}}\n'.encode(),
        f'{NONCE} {{"test": "t9", "end": 0}}\n'.encode(),
        f'{NONCE} {{"end": "0"}}\n'.encode(),
        f'{NONCE} {{"end": 1}}\n'.encode(),
    ],
)
def test_rows_that_no_runner_says_are_suspect(line: bytes) -> None:
    assert judgement(HONEST, extra=(line,)) is Judgement.SUSPECT


@pytest.mark.parametrize(
    "report",
    [
        None,
        [],
        {},
        {"nonce": "0", "exit": 1, "tests": HONEST},
        {"nonce": NONCE, "exit": 0, "tests": HONEST},
        {"nonce": NONCE, "exit": 1, "tests": HONEST | {"c1": "passed"}},
        {"nonce": NONCE, "exit": 1, "tests": {}},
        {"nonce": NONCE, "exit": True, "tests": HONEST},
    ],
)
def test_a_report_that_is_not_of_these_rows_is_suspect(report: object) -> None:
    assert judgement(HONEST, report=report) is Judgement.SUSPECT


def test_exit_codes_must_fit_the_rows() -> None:
    assert judgement(HONEST, code=0) is Judgement.SUSPECT
    assert judgement(HONEST, end=0, code=0) is Judgement.SUSPECT
    assert judgement(HONEST, code=139) is Judgement.FAIL, "it crashed after its tests"
    assert judgement({"t1": "passed", "t2": "passed"}, PLAIN, end=1) is Judgement.FAIL, "something else failed"


@pytest.mark.parametrize("limit", ["time", "cpu", "memory", "file"])
def test_limits_are_the_changes_fault_unless_the_host_gave_no_time(limit: str) -> None:
    assert judgement(HONEST, limit=limit) is Judgement.FAIL
    assert judgement(HONEST, limit=limit, starved=True) is Judgement.ERROR


def test_a_run_that_ends_before_its_end_is_a_fail() -> None:
    honest = output(HONEST)
    for lines in range(1, honest.rows.count(b"\n")):
        cut = b"\n".join(honest.rows.split(b"\n")[:lines]) + b"\n" + honest.rows.split(b"\n")[lines][:9]
        verdict = judge_run(EXAM, replace(honest, rows=cut, code=0, report=None))
        assert verdict.judgement is Judgement.FAIL
        assert "terminated its runner" in verdict.reason


def test_a_box_that_cannot_run_such_tests_is_our_error() -> None:
    assert judge_run(EXAM, RunOutput(NONCE, 127, log=b"python3: not found")).judgement is Judgement.ERROR
    broken = f'{NONCE} {{"broken": "No module named pytest"}}\n'.encode()
    verdict = judge_run(EXAM, RunOutput(NONCE, 3, rows=broken))
    assert verdict.judgement is Judgement.ERROR
    assert "No module named pytest" in verdict.reason


OUTCOMES = st.sampled_from(["passed", "failed", "error", "skipped", "xfailed", "xpassed", None])


@given(
    outcomes=st.fixed_dictionaries(dict.fromkeys(HONEST, OUTCOMES)),
    reported=st.one_of(st.just("same"), st.none(), st.fixed_dictionaries(dict.fromkeys(HONEST, OUTCOMES))),
    told=st.lists(st.sampled_from(["42", "41", None]), max_size=2),
    end=st.sampled_from([None, 0, 1, 2]),
    code=st.sampled_from([None, 0, 1, 137]),
    limit=st.sampled_from(["", "time", "cpu"]),
    garbage=st.booleans(),
)
def test_only_the_whole_truth_passes(
    outcomes: dict[str, str | None],
    reported: Any,
    told: list[str | None],
    end: int | None,
    code: int | None,
    limit: str,
    garbage: bool,
) -> None:
    said = {name: outcome for name, outcome in outcomes.items() if outcome is not None}
    report: Any = reported
    if isinstance(reported, dict):
        report = {"nonce": NONCE, "exit": 1, "tests": {n: o for n, o in reported.items() if o is not None}}
    extra = (b"x\n",) if garbage else ()
    found = output(said, told=tuple(told), end=end, code=code, limit=limit, report=report, extra=extra)
    verdict: Verdict = judge_run(EXAM, found)
    right = all(said.get(test) == "passed" for test in ("t1", "t3")) and said.get("t2") in (
        "passed",
        "skipped",
        "xfailed",
    )
    controls = all(said.get(test) in ("failed", "error") for test in ("c1", "c2"))
    whole = end in (None, 1) and code in (None, 1) and not limit and not garbage
    same = report == "same" or (isinstance(report, dict) and report["tests"] == said)
    truth = right and controls and whole and same and bool(told) and set(told) == {"42"}
    assert verdict.passed == truth
    if not truth:
        assert verdict.judgement in (Judgement.FAIL, Judgement.SUSPECT)
    # An honest run that fails is never called a cheat.
    if same and end is None and code is None and not garbage and controls:
        assert verdict.judgement in (Judgement.PASS, Judgement.FAIL)


@given(st.binary(max_size=300), st.binary(max_size=100))
def test_whatever_comes_out_of_the_box_there_is_a_verdict_and_no_pass(rows: bytes, report: bytes) -> None:
    ready = f'{NONCE} {{"ready": "1"}}\n'.encode()
    for data in (rows, ready + rows, ready + f"{NONCE} ".encode() + rows + b"\n"):
        assert not judge_run(EXAM, RunOutput(NONCE, 0, rows=data, report=report)).passed
