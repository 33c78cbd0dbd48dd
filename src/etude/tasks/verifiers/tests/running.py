"""Runs an exam (the tests of one grading) in a fresh box: writes the inputs, runs the command, and collects the
outputs.

There are three outputs. The exit code is the one that pid 1 of the box reports. Result rows come over the pipe that was
standard output before any code of the workspace ran. The report file is read after all processes have ended.
"""

from __future__ import annotations

import json
import secrets
import time
from importlib import resources

from etude.sandbox.contract import Box, ExecResult, Limits
from etude.tasks.change import Change
from etude.tasks.verifiers.archives import tar_of
from etude.tasks.verifiers.contract import WALL, GradingContext
from etude.tasks.verifiers.produced_files import read_produced
from etude.tasks.verifiers.tests import packages
from etude.tasks.verifiers.tests.exam import Exam
from etude.tasks.verifiers.tests.run_output import LARGEST_REPORT, RunOutput
from etude.tasks.verifiers.tests.suite import SuiteConfig

PYTHON = (resources.files("etude.tasks.box") / "run_tests.py").read_text(encoding="utf-8")
NODE = (resources.files("etude.tasks.box") / "run_tests.mjs").read_text(encoding="utf-8")
PATH = "/opt/python/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


async def run_exam(context: GradingContext, config: SuiteConfig, exam: Exam, change: Change | None = None) -> RunOutput:
    """Run an exam on a change, by default the context's. Raises SandboxError or OSError for infrastructure faults."""
    wall = WALL * config.seconds + 10  # A runner takes a while to start.
    nonce, place = secrets.token_hex(16), f"/tmp/{secrets.token_hex(6)}"
    limits = Limits(
        memory_mb=config.memory_mb,
        processes=config.processes,
        cpu_seconds=max(1, round(config.seconds)),
        disk_mb=config.disk_mb,
        output_bytes=LARGEST_REPORT,
    )
    job = {
        "nonce": nonce,
        "runner": config.runner,
        "workdir": context.pristine.workdir,
        "path": config.path,
        "packages": [packages.FOLDER] if config.pytest == "brought" else [],
        "arguments": config.arguments,
        "ids": exam.ids,
        "keeper": exam.keeper,
        "order": context.conditions.order,
        "folders": [f"{place}/home", f"{place}/tmp"],
        "report": f"{place}/report.json",
    }
    data = json.dumps(job).encode()
    async with context.box(limits, change) as box:
        if exam.files:
            # They belong to the workspace's owner, not to the user that runs the tests.
            scripts = [path for path, data in exam.files.items() if data.startswith(b"#!")]
            await box.write_tree(context.pristine.workdir, tar_of(exam.files, scripts))
        started = time.monotonic()
        done = await box.exec(
            command(config),
            timeout=wall,
            cwd="/",
            env=environment(config, place),
            stdin=b"%08d" % len(data) + data,
            user=context.user,
        )
        seconds = time.monotonic() - started
        return await _read_output(box, done, nonce, f"{place}/report.json", seconds)


def command(config: SuiteConfig) -> list[str]:
    """Return the command that runs the tests. It contains the whole script of the runner, so that no file in the box
    can be replaced to change the script."""
    if config.runner == "node":
        return [config.node, "--input-type=module", "-e", NODE]
    # -I would also ignore PYTHONHASHSEED. An empty PYTHONPATH, -s and cwd isolate the interpreter instead.
    return [config.python, "-s", "-B", "-c", PYTHON]


def environment(config: SuiteConfig, place: str) -> dict[str, str]:
    """Return the environment variables of the runner: an empty home and temporary folder below `place`, a PATH of the
    image's programs, and an empty PYTHONPATH, because runners add the workspace folders once started. The suite's `env`
    overrides these variables."""
    fixed = {
        "HOME": f"{place}/home",
        "TMPDIR": f"{place}/tmp",
        "PATH": PATH,
        "PYTHONPATH": "",
        "PYTHONDONTWRITEBYTECODE": "1",
        "NODE_OPTIONS": "",
    }
    return {**fixed, **config.env}


async def _read_output(box: Box, done: ExecResult, nonce: str, report: str, seconds: float) -> RunOutput:
    return RunOutput(
        nonce=nonce,
        code=done.code,
        rows=done.stdout,
        report=await read_produced(box, report, LARGEST_REPORT),
        limit=done.limit,
        starved=done.starved,
        log=done.stderr,
        seconds=seconds,
    )
