"""One run of an exam in a fresh box: what goes in, the command, and the account of what came out.

The host is the supervisor. The exit code is what pid 1 of the box reports; rows come over the pipe that was standard
output before any code of the workspace ran; the report is read when the whole tree of processes has ended.
"""

from __future__ import annotations

import io
import json
import secrets
import tarfile
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources

from etude.sandbox.contract import Box, ExecResult, Limits, RequestRefused
from etude.tasks.change import Change
from etude.tasks.verifiers.contract import WALL, Stand
from etude.tasks.verifiers.tests import packages
from etude.tasks.verifiers.tests.account import Account
from etude.tasks.verifiers.tests.exam import Exam
from etude.tasks.verifiers.tests.suite import SuiteConfig

PYTHON = (resources.files("etude.tasks.box") / "run_tests.py").read_text(encoding="utf-8")
NODE = (resources.files("etude.tasks.box") / "run_tests.mjs").read_text(encoding="utf-8")
PATH = "/opt/python/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_LARGEST_REPORT = 16 << 20


async def run_exam(stand: Stand, config: SuiteConfig, exam: Exam, change: Change | None = None) -> Account:
    """SandboxError and OSError are ours."""
    wall = WALL * config.seconds + 10  # A runner takes a while to start.
    nonce, place = secrets.token_hex(16), f"/tmp/{secrets.token_hex(6)}"
    limits = Limits(
        memory_mb=config.memory_mb,
        processes=config.processes,
        cpu_seconds=max(1, round(config.seconds)),
        disk_mb=config.disk_mb,
        output_bytes=_LARGEST_REPORT,
    )
    job = {
        "nonce": nonce,
        "runner": config.runner,
        "workdir": stand.pristine.workdir,
        "path": config.path,
        "packages": [packages.FOLDER] if config.pytest == "brought" else [],
        "arguments": config.arguments,
        "ids": exam.ids,
        "keeper": exam.keeper,
        "order": stand.conditions.order,
        "folders": [f"{place}/home", f"{place}/tmp"],
        "report": f"{place}/report.json",
    }
    data = json.dumps(job).encode()
    async with stand.box(limits, change) as box:
        await _lay(box, stand.pristine.workdir, exam.files)
        started = time.monotonic()
        done = await box.exec(
            command(config),
            timeout=wall,
            cwd="/",
            env=environment(config, place),
            stdin=b"%08d" % len(data) + data,
            user=stand.user,
        )
        seconds = time.monotonic() - started
        return await _account(box, done, nonce, f"{place}/report.json", seconds)


def command(config: SuiteConfig) -> list[str]:
    """The script is on the command line: nothing of ours lies in the box that could be replaced."""
    if config.runner == "node":
        return [config.node, "--input-type=module", "-e", NODE]
    # Not -I: it would also switch off PYTHONHASHSEED. What it is for is done by an empty PYTHONPATH, -s and cwd.
    return [config.python, "-s", "-B", "-c", PYTHON]


def environment(config: SuiteConfig, place: str) -> dict[str, str]:
    """A home and a folder for temporary files that are new and empty, programs of the image, no path into the
    workspace before the runner has started."""
    fixed = {
        "HOME": f"{place}/home",
        "TMPDIR": f"{place}/tmp",
        "PATH": PATH,
        "PYTHONPATH": "",
        "PYTHONDONTWRITEBYTECODE": "1",
        "NODE_OPTIONS": "",
    }
    return {**fixed, **config.env}


async def with_pytest(stand: Stand) -> Stand:
    """On an image with our pytest in it. The layer is one for all images; what was made before is found again."""
    pristine = stand.pristine
    image = await stand.sandboxes.add_image(packages.pytest_files(), base=pristine.image, workdir=packages.FOLDER)
    return replace(stand, pristine=replace(pristine, image=image))


async def _lay(box: Box, workdir: str, files: Mapping[str, bytes]) -> None:
    """The hidden suite: files of the workspace's owner, who is not the one that runs the tests."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, content in files.items():
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(content), 0o755 if content.startswith(b"#!") else 0o644
            archive.addfile(info, io.BytesIO(content))
    if files:
        await box.write_tree(workdir, packed.getvalue())


async def _account(box: Box, done: ExecResult, nonce: str, report: str, seconds: float) -> Account:
    try:
        written = await box.read_file(report, max_bytes=_LARGEST_REPORT)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError, RequestRefused):
        written = None
    return Account(
        nonce=nonce,
        code=done.code,
        rows=done.stdout,
        report=written,
        limit=done.limit,
        starved=done.starved,
        log=done.stderr,
        seconds=seconds,
    )
