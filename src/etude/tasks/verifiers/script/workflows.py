"""CI workflows: their steps are run on every product, each job in a box of its own (`type = "workflow"`).

task.toml  [metadata.etude.verifier]  type = "workflow", workflow (a path), writes, seconds, memory_mb
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from pydantic import Field

from etude.sandbox.contract import Box, ExecResult, Limits, RequestRefused
from etude.tasks.change import Change
from etude.tasks.task import Task
from etude.tasks.verifiers.contract import Stand
from etude.tasks.verifiers.script.products import BuildConfig, Product, ProductsVerifier, Trial
from etude.tasks.verifiers.script.workflow import Job, Step, WorkflowError, parse_workflow
from etude.tasks.verifiers.tests.starvation import Watch

_GIVEN = {"CI": "true"}


class _Config(BuildConfig):
    workflow: str = Field(min_length=1)


class WorkflowVerifier(ProductsVerifier[_Config, Product]):
    def __init__(self, task: Task) -> None:
        super().__init__(task, _Config, Product)

    def unreadable(self, files: Mapping[str, bytes]) -> str:
        path = self.config.workflow
        try:
            return "" if parse_workflow(files[path]) else f"{path}: nothing is run"
        except KeyError:
            return f"there is no {path}"
        except WorkflowError as error:
            return f"{path}: {error}"

    async def try_on(self, product: Product, stand: Stand, change: Change) -> Trial:
        jobs = parse_workflow({**stand.pristine.files, **change.files}[self.config.workflow] or b"")
        deadline = time.monotonic() + 3.0 * self.config.seconds
        memory, failed = 0, False
        for job in jobs:
            trial, failed = await self._run(job, stand, change, deadline)
            memory = max(memory, trial.memory_bytes)
            if trial.problem:
                return trial
            if failed:
                break
        problem = ""
        if failed and product.succeeds:
            problem = "the workflow failed, though the product is sound"
        elif not failed and not product.succeeds:
            problem = "the workflow succeeded, though the product is broken"
        return Trial(problem, code=trial.code, log=trial.log, memory_bytes=memory)

    async def _run(self, job: Job, stand: Stand, change: Change, deadline: float) -> tuple[Trial, bool]:
        """Until a step fails: did one?"""
        limits = Limits(memory_mb=self.config.memory_mb, cpu_seconds=self.config.seconds)
        log, done = b"", None
        async with stand.box(limits, change) as box:
            with Watch() as watch:
                for step in job.steps:
                    done = await _do(box, step, max(0.1, deadline - time.monotonic()))
                    log += f"{job.name}: {step.name}\n".encode() + done.stdout + done.stderr
                    if done.code or done.limit:
                        break
            used = await box.stats()
        if done is None:
            return Trial(memory_bytes=used.memory_bytes), False
        problem = f"{job.name}: {step.name} was ended by its limit of {done.limit}" if done.limit else ""
        ours = done.limit == "time" and watch.starved(used.cpu_seconds)
        return Trial(problem, ours, done.code, log, used.memory_bytes), done.code != 0


async def _do(box: Box, step: Step, seconds: float) -> ExecResult:
    env = {**_GIVEN, **step.env}
    try:
        return await box.exec(list(step.command), timeout=seconds, cwd=step.folder, env=env)
    except (FileNotFoundError, NotADirectoryError, RequestRefused) as error:
        # A folder that is not there, or leads out of the workspace.
        return ExecResult(127, b"", f"{step.folder}: {error}\n".encode(), 0.0)
