"""Returns a task's reference solution as a diff: the stored diff, or one made by running solve.sh in a separate box.

As with an agent's work, only changes to files of the workspace count, and these must be text files.
"""

from __future__ import annotations

from pathlib import Path

from etude.harness.editing.diff import binary_changes, unified_diff
from etude.sandbox.contract import Box, BoxSpec
from etude.tasks.directory import REFERENCE_DIFF, list_files
from etude.tasks.environment import Environments, Prepared
from etude.tasks.environment.prepared import read_prepared
from etude.tasks.fresh_box import fresh_box
from etude.tasks.harbor import Harbor, Part, parse_harbor, parts_of
from etude.tasks.seal.sealing import Sealed
from etude.tasks.task import Task, TaskError
from etude.tasks.verifiers.harbor.box_setup import (
    SOLUTION,
    fresh_logs,
    limits_of,
    packed,
    tail,
    unpack_into,
    user_of,
    variables,
)

_SECONDS = 600.0


async def reference_of(task: Task, environments: Environments) -> list[str]:
    """Return the reference solution as one diff, or one per step, made by the step's solve.sh, each relative to the
    pristine workspace. Raises TaskError if there is none, if a script fails, or if its changes are not a valid diff."""
    path = task.directory / REFERENCE_DIFF
    if path.is_file():
        return [path.read_text(encoding="utf-8")]
    harbor = parse_harbor(task.config, task.directory / "task.toml")
    for part in parts_of(harbor):
        script = part.folder(task.directory) / "solution/solve.sh"
        if not script.is_file():
            raise TaskError(f"{script}: expected a reference solution, here or as {REFERENCE_DIFF}")
    pristine = await environments.prepare(task)
    limits = limits_of(harbor.environment, harbor.agent.timeout_sec or _SECONDS)
    spec = BoxSpec(pristine.image, workdir=pristine.workdir, limits=limits, name="reference")
    async with fresh_box(environments.sandboxes, spec) as box:
        await fresh_logs(box, user_of(None, environments.sandboxes))
        diffs = []
        for part in parts_of(harbor):
            await _solve(task, harbor, part, box, environments)
            image = await box.snapshot()
            solved = await read_prepared(environments.sandboxes, Sealed(image, pristine.workdir, ()))
            diffs.append(_diff(part.folder(task.directory) / "solution/solve.sh", pristine, solved))
        return diffs


async def _solve(task: Task, harbor: Harbor, part: Part, box: Box, environments: Environments) -> None:
    folder = part.folder(task.directory)
    user = user_of(part.agent.user, environments.sandboxes)
    seconds = part.agent.timeout_sec or _SECONDS
    env = variables(task.directory / "task.toml", harbor.environment.env, harbor.solution.env)
    if part.name and (folder / "workdir").is_dir():
        await box.write_tree(".", packed(list_files(folder, "workdir")))
        if (folder / "workdir/setup.sh").is_file():
            await _run(box, folder / "workdir/setup.sh", "./setup.sh", seconds, env, user)
    await unpack_into(box, SOLUTION, packed(list_files(folder, "solution")), user_of(None, environments.sandboxes))
    await _run(box, folder / "solution/solve.sh", f"{SOLUTION}/solve.sh", seconds, env, user)


async def _run(box: Box, script: Path, command: str, seconds: float, env: dict[str, str], user: str) -> None:
    done = await box.exec(command, timeout=seconds, env=env, user=user)
    if done.code != 0:
        last_output = tail(done).strip()[-300:].replace("\n", " | ")
        raise TaskError(f"{script}: expected exit code 0, found {done.limit or done.code}: {last_output}")


def _diff(script: Path, pristine: Prepared, solved: Prepared) -> str:
    diff = unified_diff(pristine.files, solved.files)
    if binary := binary_changes(pristine.files, solved.files):
        first = binary.splitlines()[0]
        raise TaskError(f"{script}: expected changes to text files, which a diff can carry, found: {first}")
    if not diff:
        raise TaskError(
            f"{script}: expected a change below {pristine.workdir}, there is none: environment.workdir says in which "
            "folder an agent works"
        )
    return diff
