"""Where Harbor's scripts find things in a box, how these get there, and as whom and with what variables scripts run."""

from __future__ import annotations

import io
import math
import os
import re
import secrets
import shlex
import tarfile
from collections.abc import Mapping
from pathlib import Path

from etude.sandbox.contract import Box, ExecResult, Feature, Limits, Sandboxes
from etude.tasks.formats.harbor import Environment
from etude.tasks.task import TaskError

TESTS, SOLUTION, VERIFIER_LOGS, ARTIFACTS = "/tests", "/solution", "/logs/verifier", "/logs/artifacts"
MAX_BYTES = 64 << 20
"""Of one tree that goes into a box or comes out."""
LENT = "ETUDE_TASK_"
"""A task's ${NAME} is this machine's variable ETUDE_TASK_NAME: nothing else of its environment reaches the task."""
_LOGS = "rm -rf /logs /solution && mkdir -p /logs/agent /logs/verifier /logs/artifacts && chmod -R 0777 /logs"
_EMPTY = "rm -rf /logs/verifier && mkdir -p /logs/verifier && chmod 0777 /logs/verifier"
_REFERENCE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_SECONDS = 60.0


async def fresh_logs(box: Box, user: str) -> None:
    """Nothing of the image's, nor of whoever was in the box before."""
    await _do(box, _LOGS, user)


async def lay_tests(box: Box, files: Mapping[str, Path], user: str) -> None:
    """The last thing before test.sh: whatever collecting left at the verifier's places is gone.

    Without files, the image has its own."""
    await _do(box, f"{_EMPTY} && rm -rf {TESTS}" if files else f"{_EMPTY}; chmod +x {TESTS}/test.sh", user)
    if files:
        await put(box, TESTS, tar_of(files), user)


async def put(box: Box, place: str, tar: bytes, user: str) -> None:
    """Unpacks a tar below any folder of the box, also one that the box's agent may not write to."""
    staged = f"/tmp/{secrets.token_hex(8)}"
    await box.write_tree(staged, tar, max_bytes=MAX_BYTES)
    goal = shlex.quote(place)
    await _do(box, f"mkdir -p {goal} && cp -R {staged}/. {goal}/ && rm -rf {staged}", user)


def tar_of(files: Mapping[str, Path]) -> bytes:
    """Of files of a task's directory; scripts, and what may be run there, may be run in the box."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, path in files.items():
            content = path.read_bytes()
            info = tarfile.TarInfo(name)
            runs = path.stat().st_mode & 0o100 or name.endswith(".sh")
            info.size, info.mode = len(content), 0o755 if runs else 0o644
            archive.addfile(info, io.BytesIO(content))
    return data.getvalue()


async def read_or_none(box: Box, path: str, max_bytes: int) -> bytes | None:
    try:
        return await box.read_file(path, max_bytes=max_bytes)
    except (FileNotFoundError, IsADirectoryError):
        return None


def user_of(named: str | None, sandboxes: Sandboxes) -> str:
    """As in Harbor: whom the task names, or else root. Where a box has one id only, it is everybody's."""
    if Feature.ROOT_USER not in sandboxes.features:
        return ""
    return "root" if named in (None, "0") else named or ""


def limits_of(environment: Environment, seconds: float) -> Limits:
    """What the task declares, with Harbor's defaults. A busy loop meets the CPU time, which is no clock's."""
    storage = environment.storage_mb or 10_240
    return Limits(
        memory_mb=environment.memory_mb or 2048,
        processes=512,
        cpu_seconds=math.ceil(seconds * max(1.0, environment.cpus or 1.0)),
        file_mb=storage,
        disk_mb=storage,
        output_bytes=4_000_000,
    )


def variables(path: Path, *tables: Mapping[str, str]) -> dict[str, str]:
    """The variables of a task with what ${NAME} and ${NAME:-default} stand for; TaskError for one that nobody gave."""

    def given(match: re.Match[str]) -> str:
        value = os.environ.get(LENT + match[1], match[2])
        if value is None:
            raise TaskError(f"{path}: env: {match[0]}: expected a value: set {LENT}{match[1]} for this command")
        return value

    return {name: _REFERENCE.sub(given, text) for table in tables for name, text in table.items()}


def tail(done: ExecResult) -> str:
    return (done.stdout[-4000:] + done.stderr[-4000:]).decode("utf-8", "replace")


async def _do(box: Box, command: str, user: str) -> None:
    # The image's own programs, before anything of an agent's runs as this user: a workspace is on no such path.
    line = f"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; {command}"
    done = await box.exec(line, timeout=_SECONDS, cwd="/", user=user)
    if done.code != 0:
        raise OSError(f"a box cannot be made ready for a Harbor task: {tail(done)[-300:]}")
