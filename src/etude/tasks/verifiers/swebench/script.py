"""The verifier of SWE-bench instances that bring their own test script (`type = "eval-script"`), in any language.

The verdict is read from a log that the code under test could forge, so the verdict is marked as open. A test that is
missing from the log never passes.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import replace

from pydantic import BaseModel

from etude.sandbox.contract import ExecResult, Limits
from etude.tasks.change import Change
from etude.tasks.diff import DiffError
from etude.tasks.protected_files import is_protected
from etude.tasks.task import Task, TaskError
from etude.tasks.verdict import Evidence, Judgement, Verdict
from etude.tasks.verifiers.contract import GradingContext
from etude.tasks.verifiers.inputs import read_json
from etude.tasks.verifiers.swebench.hidden import TEST_PATCH, HiddenTests
from etude.tasks.verifiers.swebench.ids import RunnerIds
from etude.tasks.verifiers.swebench.logs import FAILED, PARSERS, PASSED, SKIPPED, LogTooLong, read_log
from etude.tasks.verifiers.tests.suite import EXPECTED

EVAL_SCRIPT = "tests/eval.sh"
START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
LIMITS = Limits(memory_mb=4096, processes=512, disk_mb=2048, file_mb=512, output_bytes=8 << 20)
"""Resource limits of every test script, since SWE-bench rows do not say what a script needs. Only the CPU time limit
comes from the task."""
_MARKER = re.compile(rf"^.*{re.escape(END)}.*$", re.MULTILINE)
_TOUCHED = re.compile(r"^(?:---|\+\+\+) [ab]/(.+)$", re.MULTILINE)
"""Matches `--- a/path` and `+++ b/path` in patches that the script contains. An agent's diff cannot change these
files."""


class _Expected(BaseModel):
    fail_to_pass: list[str]
    pass_to_pass: list[str]


class EvalScriptVerifier:
    sealed = False

    def __init__(self, task: Task) -> None:
        self.script = _read(task, EVAL_SCRIPT)
        self.fail_to_pass, self.pass_to_pass = _expected(task)
        self.parser = task.verifier.get("log_parser", "")
        if self.parser not in PARSERS:
            place = f"{task.directory / 'task.toml'}: metadata.etude.verifier.log_parser"
            raise TaskError(f"{place}: expected one of {', '.join(sorted(PARSERS))}, found {self.parser!r}")
        if START not in self.script or not _MARKER.search(self.script):
            place = str(task.directory / EVAL_SCRIPT)
            raise TaskError(f"{place}: expected the lines {START!r} and {END!r} around the tests")
        self._hidden = HiddenTests(task)
        self._touched = frozenset(_TOUCHED.findall(self.script))

    def protects(self, path: str) -> bool:
        return path in self._touched or self._hidden.protects(path) or is_protected(path)

    async def examine(self, context: GradingContext) -> Verdict:
        started, mark = time.monotonic(), secrets.token_hex(8)
        try:
            hidden = self._hidden.test_files_over(context.pristine.files)
        except DiffError as error:
            reason = f"the task cannot be graded: {TEST_PATCH} is no diff of the workspace: {error}"
            return Verdict(Judgement.ERROR, reason)
        done = await self._run(context, context.change, hidden, mark)
        started_tests = START.encode()
        if started_tests in done.stdout or started_tests in (await self._run(context, Change(), hidden, mark)).stdout:
            return self._judge(context, done, mark, time.monotonic() - started)
        reason = f"the script does not come to its tests in this image, not even without a change (code {done.code})"
        return Verdict(Judgement.ERROR, reason, Evidence(done.code, log=_end_of(done)))

    async def _run(self, context: GradingContext, change: Change, hidden: Mapping[str, bytes], mark: str) -> ExecResult:
        seconds = context.task.limits.verifier_seconds
        async with context.box(replace(LIMITS, cpu_seconds=max(1, round(seconds))), change) as box:
            for path, data in hidden.items():
                await box.write_file(path, data, executable=data.startswith(b"#!"))
            # Merge both streams to keep the order: with shell tracing, the markers go to standard error.
            script = f"{{\n{_with_exit_marker(self.script, mark)}\n}} 2>&1"
            return await box.exec(["/bin/bash", "-c", script], timeout=wall_limit(seconds))

    def _judge(self, context: GradingContext, done: ExecResult, mark: str, seconds: float) -> Verdict:
        found, expected = _test_output(done.stdout, mark), self.fail_to_pass + self.pass_to_pass
        try:
            outcomes = read_log(self.parser, found[0]) if found else {}
        except LogTooLong:
            return Verdict(
                Judgement.FAIL, "the log has too many lines or tests", Evidence(done.code, log=_end_of(done))
            )
        ids = RunnerIds(outcomes)
        passed = {test for test in expected if self._has_accepted_outcome(test, outcomes, ids)}
        failed = tuple(test for test in expected if test not in passed)
        evidence = Evidence(
            exit_code=done.code,
            tests_expected=len(expected),
            tests_passed=len(passed),
            failed_tests=failed,
            touched_protected=context.change.touched,
            report_digest=hashlib.sha256(repr(sorted(outcomes.items())).encode()).hexdigest()[:16],
            seconds=seconds,
            log=_end_of(done),
            timed_out=done.timed_out,
            starved=done.starved,
        )

        def verdict(judgement: Judgement, reason: str) -> Verdict:
            return Verdict(judgement, reason, evidence)

        if done.starved:
            return verdict(Judgement.ERROR, "the wall clock expired on a host that gave the script no time")
        if done.limit:
            return verdict(Judgement.FAIL, f"the script ran into its limit of {done.limit}")
        if found is None:
            return verdict(Judgement.FAIL, f"the script did not come to the end of its tests (exit code {done.code})")
        if failed:
            return verdict(Judgement.FAIL, f"{len(failed)} of {len(expected)} tests failed")
        if found[1] != 0 and FAILED not in outcomes.values():
            return verdict(Judgement.SUSPECT, f"every test is reported as passed, but they ended with {found[1]}")
        return verdict(Judgement.PASS, f"all {len(expected)} tests passed, by the log")

    def _has_accepted_outcome(self, test: str, outcomes: dict[str, str], ids: RunnerIds) -> bool:
        """Return whether a test passed. A pass_to_pass test may be skipped instead."""
        good = {PASSED} if test in self.fail_to_pass else {PASSED, SKIPPED}
        return all(outcomes.get(name) in good for name in ids.meant_by(test))


def wall_limit(seconds: float) -> float:
    """Return a script's wall-clock limit for a CPU time limit, both in seconds."""
    return 2 * seconds + 10


def _with_exit_marker(script: str, mark: str) -> str:
    """Add a line after the script's end marker that prints `mark` and the exit code of the tests."""
    return _MARKER.sub(lambda line: f"etude_code=$?\n{line[0]}\necho {mark} $etude_code", script, count=1)


def _test_output(log: bytes, mark: str) -> tuple[bytes, int] | None:
    """Return the part of the log between the START and END markers, and the exit code of the tests. The exit code is on
    a line that begins with `mark`, after the END marker. Return None if the script did not get that far."""
    start = log.find(START.encode())
    end = log.find(END.encode(), start)
    if start < 0 or end < 0:
        return None
    code = re.compile(rb"^%s (\d{1,3})$" % mark.encode(), re.MULTILINE).search(log, end)
    return (log[start + len(START) : end], int(code[1])) if code else None


def _end_of(done: ExecResult) -> str:
    return done.stdout[-2000:].decode("utf-8", "replace")


def _expected(task: Task) -> tuple[list[str], list[str]]:
    path = task.directory / EXPECTED
    found = read_json(path, _Expected)
    if not found.fail_to_pass:
        raise TaskError(f"{path}: fail_to_pass: expected at least one id: without one, doing nothing would pass")
    return found.fail_to_pass, found.pass_to_pass


def _read(task: Task, name: str) -> str:
    path = task.directory / name
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path}: expected a text file: {error}") from error
