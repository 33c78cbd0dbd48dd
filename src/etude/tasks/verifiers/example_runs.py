"""Runs Python examples in a box. An example is a sequence of steps that share a namespace; the report says what each
step printed or raised.

The report can be trusted only if the examples are in the restricted language of `language.py`, since other code could
forge it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from importlib import resources

from etude.sandbox.contract import Limits
from etude.tasks.box.run_examples import REPORT
from etude.tasks.change import Change
from etude.tasks.verdict import Evidence, Judgement, Verdict
from etude.tasks.verifiers.contract import GradingContext
from etude.tasks.verifiers.untrusted_json import parse_untrusted

RUNNER = (resources.files("etude.tasks.box") / "run_examples.py").read_text(encoding="utf-8")
SECONDS = 2
"""CPU time limit of one example, in seconds."""
LIMITS = Limits(memory_mb=256, processes=16, cpu_seconds=60, disk_mb=16, output_bytes=8_000_000)


async def run_examples(
    context: GradingContext, runs: Sequence[Mapping[str, object]], change: Change, env: Mapping[str, str] | None = None
) -> list[list[object]] | Verdict:
    """Run examples (JSON objects for run_examples.py) in one box with `change` applied. Return the outcomes of each
    example's steps, or a verdict if the runner reports no valid outcomes."""
    nonce = secrets.token_hex(16)
    wall = context.task.limits.verifier_seconds
    job = {"workdir": context.pristine.workdir, "seconds": SECONDS, "runs": list(runs)}
    data = json.dumps(job).encode()
    async with context.box(LIMITS, change) as box:
        done = await box.exec(
            ["python3", "-s", "-B", "-c", RUNNER],
            timeout=wall,
            cwd="/",
            env=dict(env or {}),
            stdin=b"%08d" % len(data) + data + nonce.encode(),
            user=context.user,
        )
    if done.limit:
        evidence = Evidence(timed_out=done.timed_out, starved=done.starved)
        if done.starved:
            reason = "the wall clock expired on a host that gave the examples no time"
            return Verdict(Judgement.ERROR, reason, evidence)
        return Verdict(Judgement.FAIL, f"the examples ran into the limit of {done.limit}", evidence)
    lines = done.stdout.decode("utf-8", "replace").split("\n")
    reports = [line.removeprefix(REPORT) for line in lines if line.startswith(REPORT)]
    if len(reports) != 1:
        log = done.stderr[-2000:].decode("utf-8", "replace")
        return Verdict(Judgement.ERROR, f"the examples were not run (exit code {done.code})", Evidence(log=log))
    try:
        report = parse_untrusted(reports[0], LIMITS.output_bytes)
        found: list[list[object]] = report["runs"]
        ours = isinstance(report["nonce"], str) and report["nonce"] == nonce
        if not ours or len(found) != len(runs) or not all(isinstance(outcomes, list) for outcomes in found):
            raise ValueError("not the report of this run")
    except (ValueError, KeyError, TypeError) as error:
        return Verdict(Judgement.SUSPECT, f"the report was tampered with: {error}")
    return found
