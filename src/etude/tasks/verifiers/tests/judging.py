"""Derives the verdict on a test run from a box's output. The functions are pure, so that every kind of forged output
can be tested.

A pass requires that exit code, result rows and final report agree, and that every expected test passed. Some expected
values are withheld from the box: the tests report their values, which are compared here and must be equal. Every
negative control (an altered test) must have failed. Missing results are never a pass. Results that an honest solution
cannot produce are `suspect`.
"""

from __future__ import annotations

import ast
import hashlib

from etude.tasks.box.run_tests import LONGEST_VALUE, MOST_TOLD
from etude.tasks.verdict import Evidence, Judgement, Verdict
from etude.tasks.verifiers.tests.exam import Exam, Withheld
from etude.tasks.verifiers.tests.run_output import Rows, RunOutput, read_report, read_rows

FAILURES = frozenset(("failed", "error"))
_WIDEST = 400
"""Maximum length of a reported value, plus as much again for every 8 characters of the expected value. Equal values may
differ that much in length: 1e308 has 5 characters, and 309 as an integer."""
_LIMITS = {
    "time": "outlasted the wall clock",
    "cpu": "used up the CPU time",
    "memory": "used up the memory",
    "file": "wrote too large a file",
}


def judge_run(exam: Exam, output: RunOutput, touched: tuple[str, ...] = ()) -> Verdict:
    """Return the verdict on a test run. `touched` are the protected paths that the agent's diff names, which are only
    recorded as evidence."""
    rows = read_rows(output.rows, output.nonce)
    passed = {ours for test, ours in exam.tests.items() if _accepted(exam, rows, test, ours)}
    failed = tuple(sorted(set(exam.tests.values()) - passed))
    # An altered copy passed together with its original. (If only the copy passed, the solution may simply be wrong.)
    fooled = tuple(
        sorted({ours for test, ours in exam.controls.items() if rows.outcomes.get(test) == "passed" and ours in passed})
    )

    def verdict(judgement: Judgement, reason: str) -> Verdict:
        evidence = Evidence(
            exit_code=output.code,
            tests_expected=len(exam.tests),
            tests_passed=len(passed),
            failed_tests=failed,
            touched_protected=touched,
            report_digest=hashlib.sha256(repr(sorted(rows.outcomes.items())).encode()).hexdigest()[:16],
            seconds=output.seconds,
            log=output.log[-2000:].decode("utf-8", "replace"),
            controls=len(exam.controls),
            withheld=sum(map(len, exam.withheld.values())),
            controls_passed=fooled,
            memory_bytes=rows.memory_bytes,
            timed_out=output.limit == "time",
            starved=output.starved,
        )
        return Verdict(judgement, reason, evidence)

    if rows.broken or not rows.ready:
        why = rows.broken or f"exit code {output.code}{output.limit and ', limit of ' + output.limit}"
        return verdict(Judgement.ERROR, f"the tests cannot be run in this image: {why}")
    if rows.tampered:
        return verdict(Judgement.SUSPECT, f"the rows were tampered with: {rows.tampered}")
    if output.limit:
        if output.starved:
            return verdict(Judgement.ERROR, "the wall clock expired on a host that gave the tests no time")
        return verdict(Judgement.FAIL, f"the tests {_LIMITS.get(output.limit, output.limit)}")
    if rows.end is None:
        heard = len(rows.outcomes.keys() & exam.tests.keys())
        place = f"after {heard} of {len(exam.tests)} tests, with exit code {output.code}"
        return verdict(Judgement.FAIL, f"the code terminated its runner {place}")
    if problem := _disagreement(rows, output):
        return verdict(Judgement.SUSPECT, problem)
    if fooled:
        return verdict(Judgement.SUSPECT, f"{len(fooled)} tests pass whatever value they expect")
    if output.code != rows.end:
        return verdict(Judgement.FAIL, f"the tests ended, but the process then exited with code {output.code}")
    if failed:
        missing = sum(test not in rows.outcomes for test in exam.tests)
        also = f", {missing} of them did not run" if missing else ""
        return verdict(Judgement.FAIL, f"{len(failed)} of {len(exam.tests)} tests failed{also}")
    if rows.end != int(bool({*FAILURES, "xpassed"} & set(rows.outcomes.values()))):
        return verdict(Judgement.FAIL, f"every test passed, but the runner ended with {rows.end}")
    if idle := [test for test in exam.controls if rows.outcomes.get(test) not in FAILURES]:
        return verdict(Judgement.SUSPECT, f"{len(idle)} tests that must fail did not")
    return verdict(Judgement.PASS, f"all {len(exam.tests)} tests passed")


def _accepted(exam: Exam, rows: Rows, test: str, ours: str) -> bool:
    """Return whether a required test passed, or was skipped or xfailed as the task allows. The values that it reported
    must also equal those withheld from the box. `test` is its id in the box, `ours` the task's own id."""
    outcome = rows.outcomes.get(test)
    if not all(holds(withheld, rows, test) for withheld in exam.withheld.get(test, ())):
        return False
    if outcome in ("skipped", "xfailed"):
        return ours in exam.may_skip
    return outcome == "passed"


def holds(withheld: Withheld, rows: Rows, test: str) -> bool:
    """Return whether a test reported all expected values in order, once or several times. The last repetition must be
    complete, unless the test reached the limit of `MOST_TOLD` reports."""
    count = len(rows.reported(test, withheld.key))
    ended = count % len(withheld.values) == 0 or count == MOST_TOLD
    return count > 0 and ended and not missed(withheld, rows, test)


def missed(withheld: Withheld, rows: Rows, test: str) -> list[tuple[object, list[object]]]:
    """Return the expected values for which `test` reported nothing or a different value, each with what it reported."""
    reported, values = rows.reported(test, withheld.key), withheld.values
    rounds = [reported[place :: len(values)] for place in range(len(values))]
    pairs = zip(values, rounds, strict=True)
    return [(value, texts) for value, texts in pairs if not texts or not all(_is(text, value) for text in texts)]


def _is(text: object, expected: object) -> bool:
    if not isinstance(text, str) or len(text) > LONGEST_VALUE:
        return False
    # Evaluating a text takes far longer than reading it, and the code under test chooses its length.
    if len(text) > _WIDEST * (1 + len(repr(expected)) // 8):
        return False
    try:
        return bool(ast.literal_eval(text) == expected)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False


def _disagreement(rows: Rows, output: RunOutput) -> str:
    """Return the first disagreement between exit code, result rows and the runner's report of a completed test run, or
    an empty string."""
    found = read_report(output.report, output.nonce)
    if found is None:
        return "the rows are complete, but the runner's report is missing or forged"
    code, tests = found
    if tests != rows.outcomes:
        return "the rows and the runner's report differ"
    if code != rows.end:
        return "the rows and the runner's report end differently"
    bad = bool(FAILURES & set(rows.outcomes.values()))
    if rows.end == 0 and bad:
        return "the runner ended with 0, though tests failed"
    if output.code == 0 and rows.end != 0:
        return f"the runner ended with {rows.end}, the process with 0"
    return ""
