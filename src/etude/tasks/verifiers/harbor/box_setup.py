"""Prepares a box for Harbor's scripts: puts files where the scripts expect them, and determines the users, limits and
environment variables that the scripts run with."""

from __future__ import annotations

import math
import os
import re
import secrets
import shlex
from collections.abc import Mapping
from pathlib import Path

from etude.sandbox.contract import Box, ExecResult, Feature, Limits, Sandboxes
from etude.tasks.harbor import Environment
from etude.tasks.task import TaskError
from etude.tasks.verifiers.archives import tar_of

TESTS, SOLUTION, VERIFIER_LOGS, ARTIFACTS = "/tests", "/solution", "/logs/verifier", "/logs/artifacts"
MAX_BYTES = 64 << 20
"""Largest folder tree, in bytes, that is copied into a box or out of it."""
HOST_VARIABLE_PREFIX = "ETUDE_TASK_"
"""Prefix of the host's environment variables that a task may use: ${NAME} in a task is replaced by the host's
ETUDE_TASK_NAME. No other variable of the host reaches the task."""
_LOGS = "rm -rf /logs /solution && mkdir -p /logs/agent /logs/verifier /logs/artifacts && chmod -R 0777 /logs"
_EMPTY = "rm -rf /logs/verifier && mkdir -p /logs/verifier && chmod 0777 /logs/verifier"
_REFERENCE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_SECONDS = 60.0


async def fresh_logs(box: Box, user: str) -> None:
    """Create Harbor's log folders anew. What the image or earlier commands left there or in /solution is removed."""
    await _run_setup(box, _LOGS, user)


async def place_tests(box: Box, files: Mapping[str, Path], user: str) -> None:
    """Place the tests at /tests, unless the image has them (`files` is empty), and empty /logs/verifier, where the
    task's collect hooks may have left files. This must be the last step before test.sh runs."""
    await _run_setup(box, f"{_EMPTY} && rm -rf {TESTS}" if files else f"{_EMPTY}; chmod +x {TESTS}/test.sh", user)
    if files:
        await unpack_into(box, TESTS, packed(files), user)


async def unpack_into(box: Box, place: str, tar: bytes, user: str) -> None:
    """Unpack a tar as `user`, into a folder that the agent's own user need not be able to write."""
    staged = f"/tmp/{secrets.token_hex(8)}"
    await box.write_tree(staged, tar, max_bytes=MAX_BYTES)
    goal = shlex.quote(place)
    await _run_setup(box, f"mkdir -p {goal} && cp -R {staged}/. {goal}/ && rm -rf {staged}", user)


def packed(files: Mapping[str, Path]) -> bytes:
    """Return a tar of files on the host. Those that end in .sh or are executable on the host are executable in it."""
    scripts = [name for name, path in files.items() if path.stat().st_mode & 0o100 or name.endswith(".sh")]
    return tar_of({name: path.read_bytes() for name, path in files.items()}, scripts)


def user_of(named: str | None, sandboxes: Sandboxes) -> str:
    """Return the user for commands in the box: the one that the task names or, as in Harbor, root. If boxes cannot run
    commands as root, return an empty string, which means the box's default user."""
    if Feature.ROOT_USER not in sandboxes.features:
        return ""
    return "root" if named in (None, "0") else named or ""


def limits_of(environment: Environment, seconds: float) -> Limits:
    """Return a box's limits: those declared, or Harbor's defaults, and `seconds` of CPU time per declared CPU."""
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
    """Merge tables of a task's environment variables, with ${NAME} and ${NAME:-default} replaced by the host's values.
    Raises TaskError for a variable without a value."""

    def given(match: re.Match[str]) -> str:
        value = os.environ.get(HOST_VARIABLE_PREFIX + match[1], match[2])
        if value is None:
            raise TaskError(
                f"{path}: env: {match[0]}: expected a value: set {HOST_VARIABLE_PREFIX}{match[1]} for this command"
            )
        return value

    return {name: _REFERENCE.sub(given, text) for table in tables for name, text in table.items()}


def tail(done: ExecResult) -> str:
    return (done.stdout[-4000:] + done.stderr[-4000:]).decode("utf-8", "replace")


async def _run_setup(box: Box, command: str, user: str) -> None:
    # The PATH has only the image's own folders and none of the workspace, so this user runs no program that the agent
    # wrote.
    line = f"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; {command}"
    done = await box.exec(line, timeout=_SECONDS, cwd="/", user=user)
    if done.code != 0:
        raise OSError(f"a box cannot be made ready for a Harbor task: {tail(done)[-300:]}")
