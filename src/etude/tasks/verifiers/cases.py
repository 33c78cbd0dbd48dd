"""The `cases` verifier: calls the agent's functions in a fresh box, and compares the results outside the box.

The box gets the calls but not the expected values. A pass requires that the runner exits with code 0, that there is
exactly one report with this grading's nonce, and that every case has the expected outcome. A missing outcome is never a
pass.
"""

from __future__ import annotations

import hashlib
import json
import random
import secrets
import time
from importlib import resources

from etude.sandbox.contract import ExecResult, Limits
from etude.tasks.box.run_cases import READY, REPORT
from etude.tasks.cases import Case, CasesError, load_cases
from etude.tasks.protected_files import is_protected
from etude.tasks.task import Task, TaskError
from etude.tasks.verdict import Evidence, Judgement, Verdict
from etude.tasks.verifiers.contract import GradingContext
from etude.tasks.verifiers.untrusted_json import parse_untrusted, texts_by_name

FILE = "tests/cases.json"
RUNNER = (resources.files("etude.tasks.box") / "run_cases.py").read_text(encoding="utf-8")
CPU_SECONDS = 2
"""CPU time limit of all cases together, in seconds. It is not a wall-clock limit, which a busy host might exceed."""
LIMITS = Limits(memory_mb=256, processes=16, cpu_seconds=4, file_mb=4, disk_mb=16, output_bytes=2_000_000)


class CasesVerifier:
    sealed = True

    def __init__(self, task: Task) -> None:
        path = task.directory / FILE
        try:
            self.cases = load_cases(path.read_bytes())
        except OSError as error:
            raise TaskError(f"{path}: expected a file: {error.strerror}") from error
        except CasesError as error:
            raise TaskError(f"{path}: {error}") from error

    def protects(self, path: str) -> bool:
        return is_protected(path)

    async def examine(self, context: GradingContext) -> Verdict:
        started = time.monotonic()
        nonce = secrets.token_hex(16)
        calls = [
            {"id": c.id, "module": c.module, "function": c.function, "arguments": list(c.arguments)} for c in self.cases
        ]
        if context.conditions.order is not None:
            random.Random(context.conditions.order).shuffle(calls)
        job = {"workdir": context.pristine.workdir, "cpu_seconds": CPU_SECONDS, "cases": calls}
        data = json.dumps(job).encode()
        async with context.box(LIMITS) as box:
            result = await box.exec(
                ["python3", "-I", "-S", "-B", "-c", RUNNER],
                timeout=context.task.limits.verifier_seconds,
                cwd="/",
                stdin=b"%08d" % len(data) + data + nonce.encode(),
                user=context.user,
            )
        seconds = time.monotonic() - started
        return judge(result, self.cases, nonce, touched=context.change.touched, seconds=seconds)


def judge(
    result: ExecResult,
    cases: tuple[Case, ...],
    nonce: str,
    *,
    touched: tuple[str, ...] = (),
    seconds: float = 0.0,
) -> Verdict:
    """Return the verdict on a run's output. Pure, so that tests can try every kind of forged output."""
    lines = result.stdout.decode("utf-8", "replace").split("\n")
    reports = [line[len(REPORT) :] for line in lines if line.startswith(REPORT)]
    log = (result.stderr[-2000:]).decode("utf-8", "replace")

    def verdict(judgement: Judgement, reason: str, failed: tuple[str, ...] = (), passed: int = 0) -> Verdict:
        digest = hashlib.sha256(result.stdout.replace(nonce.encode(), b"")).hexdigest()[:16]
        evidence = Evidence(
            result.code,
            len(cases),
            passed,
            failed,
            touched,
            digest,
            seconds,
            log,
            timed_out=result.timed_out,
            starved=result.starved,
        )
        return Verdict(judgement, reason, evidence)

    if lines[0] != READY:
        return verdict(Judgement.ERROR, f"the verifier did not start (exit code {result.code})")
    if result.timed_out:
        if result.starved:
            return verdict(Judgement.ERROR, "the wall clock expired on a host that gave the code no time")
        return verdict(Judgement.FAIL, "the code outlasted the verifier's time limit")
    if not reports:
        return verdict(Judgement.FAIL, f"the code terminated the verifier (exit code {result.code})")
    try:
        report = parse_untrusted(reports[0], LIMITS.output_bytes)
        rows = [(identity, texts_by_name(outcome)) for identity, outcome in report["rows"]]
        named = {identity: outcome.get("value") for identity, outcome in rows}
        status, reported_nonce = report["status"], report["nonce"]
        plain = isinstance(reported_nonce, str) and (status is None or type(status) is int)
    except (ValueError, KeyError, TypeError):
        return verdict(Judgement.SUSPECT, "the report is not one that the runner writes")
    known = {case.id for case in cases}
    if len(reports) > 1 or not plain or reported_nonce != nonce or len(named) != len(rows) or named.keys() - known:
        return verdict(Judgement.SUSPECT, "the report was tampered with")
    failed = tuple(case.id for case in cases if named.get(case.id) != case.expected)
    passed = len(cases) - len(failed)
    if failed:
        slow = status is not None and status < 0
        reason = f"{len(failed)} of {len(cases)} cases failed" + (
            f", the code was ended by signal {-status}" if slow else ""
        )
        return verdict(Judgement.FAIL, reason, failed, passed)
    if result.code != 0 or status != 0:
        return verdict(Judgement.FAIL, f"every case passed, but the run ended with {status}", failed, passed)
    return verdict(Judgement.PASS, f"all {len(cases)} cases passed", failed, passed)
