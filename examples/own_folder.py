"""Make a gated task of a folder of your own: code, and unittest tests below tests/ that pass.

Run: .venv/bin/python examples/own_folder.py FOLDER TASK [bug.diff]. The task's agent sees FOLDER with a bug in it and
without its tests. The bug is what bug.diff makes of FOLDER, or the first alteration of a line that the tests notice.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from etude.harness.editing.diff import as_text, is_source, unified_diff
from etude.recipe.acting import SandboxRecipe
from etude.sandbox import open_sandboxes
from etude.sandbox.contract import BoxSpec, Limits, Sandboxes
from etude.tasks import GateResult, Task, apply_diff, gate, read_files, split_of, write_task
from etude.tasks.categories.alterations import altered, damages
from etude.tasks.categories.variants import RUNNER, Outcome, job_of, outcomes_of
from etude.tasks.verifiers.tests import suite_files

Files = dict[str, bytes]


async def outcomes(sandboxes: Sandboxes, files: Files, variants: Sequence[Files]) -> list[Outcome | None]:
    """Of your tests in a box: your code is not run on this machine."""
    image = await sandboxes.add_image({})
    box = await sandboxes.create(BoxSpec(image, limits=Limits(cpu_seconds=300)))
    try:
        done = await box.exec(["python3", "-I", "-c", RUNNER], timeout=900, stdin=job_of(files, variants))
    finally:
        await box.destroy()
    return outcomes_of(done.stdout) if done.code == 0 else sys.exit(done.stderr.decode())


async def main(folder: Path, directory: Path, diff: str = "") -> GateResult:
    files = {
        path: data for path, data in read_files(folder, ".").items() if is_source(path) and as_text(data) is not None
    }
    tests = {path: data for path, data in files.items() if path.startswith("tests/")}
    code = {path: data for path, data in files.items() if path not in tests}
    if diff:
        bugs = [{p: t.encode() for p, t in apply_diff({p: d.decode() for p, d in code.items()}, diff).items()}]
    else:
        bugs = [altered(code, [one]) for path in code if path.endswith(".py") for one in damages(path, code[path])]
    with tempfile.TemporaryDirectory() as place:
        sandboxes = open_sandboxes(SandboxRecipe(), Path(place))
        try:
            whole, *tried = await outcomes(sandboxes, files, [{}, *bugs])
            if whole is None or whole.failed:
                sys.exit(f"{folder}: its tests must pass first, found {whole}")
            noticed = (pair for pair in zip(bugs, tried, strict=True) if pair[1] and pair[1].failed)
            bug, outcome = next(noticed, (None, None))
            if bug is None or outcome is None:
                sys.exit(f"{folder}: its tests notice no such bug")
            name = directory.name
            task = Task(name, f"Something in {folder.name} is broken: find and mend it.", "debugging", split_of(name),
                        name, "own", directory, verifier={"type": "tests", "runner": "unittest"})  # fmt: skip
            repository = {f"environment/repo/{path}": data for path, data in bug.items()}
            suite = suite_files(tests, outcome.failed, outcome.passed)
            reference = {"solution/patch.diff": unified_diff(bug, code).encode()}
            write_task(task, {**repository, **suite, **reference})
            return await gate(task, sandboxes)
        finally:
            await sandboxes.close()


if __name__ == "__main__":
    given = Path(sys.argv[3]).read_text() if len(sys.argv) > 3 else ""
    result = asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), given))
    print(result.task, "may be used" if result.survived else f"may not be used: {result.reasons}", result)
