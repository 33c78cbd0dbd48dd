"""The verifier of CI workflows (`type = "workflow"`). It runs the workflow on every product (a hidden variant of the
workspace's files), each job in its own box.

task.toml  [metadata.etude.verifier]  type = "workflow", workflow (a path), writes, seconds, memory_mb
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from pydantic import Field

from etude.sandbox.contract import Box, ExecResult, Limits, RequestRefused
from etude.sandbox.cpu_share import Share
from etude.tasks.change import Change
from etude.tasks.task import Task
from etude.tasks.verifiers.contract import WALL, GradingContext
from etude.tasks.verifiers.script.products import BuildConfig, Product, ProductsVerifier, Trial
from etude.tasks.verifiers.script.workflow import Job, Step, WorkflowError, parse_workflow

_CI_VARIABLES = {"CI": "true"}
_NOTHING = ExecResult(0, b"", b"", 0.0)
_LOG_BYTES = 4000
"""How much of the end of the jobs' output is kept. All of it could be gigabytes."""


class _Config(BuildConfig):
    workflow: str = Field(min_length=1)


class WorkflowVerifier(ProductsVerifier[_Config, Product]):
    def __init__(self, task: Task) -> None:
        super().__init__(task, _Config, Product)

    def invalid_reason(self, files: Mapping[str, bytes]) -> str:
        path = self.config.workflow
        try:
            return "" if _parsed(files[path]) else f"{path}: nothing is run"
        except KeyError:
            return f"there is no {path}"
        except WorkflowError as error:
            return f"{path}: {error}"

    async def try_product(self, product: Product, context: GradingContext, change: Change) -> Trial:
        jobs = _parsed({**context.pristine.files, **change.files}[self.config.workflow] or b"")
        memory, log, done = 0, b"", _NOTHING
        for job in jobs:
            step, done, output, peak = await self._run(job, context, change, done.share)
            log, memory = (log + output)[-_LOG_BYTES:], max(memory, peak)
            if done.code or done.limit:
                break
        problem = ""
        if done.limit:
            problem = f"{job.name}: {step} was ended by its limit of {done.limit}"
        elif done.code and product.succeeds:
            problem = "the workflow failed, though the product is sound"
        elif not done.code and not product.succeeds:
            problem = "the workflow succeeded, though the product is broken"
        return Trial(problem, done.timed_out, done.starved, done.code, log, memory)

    async def _run(
        self, job: Job, context: GradingContext, change: Change, share: Share
    ) -> tuple[str, ExecResult, bytes, int]:
        """Run a job until a step fails or reaches a limit. Return the last step's name and result, the job's output,
        and its peak memory in bytes.

        All jobs have one wall-clock limit together. `share` is the wall-clock time of the earlier jobs, with the CPU
        time that they were offered and used. The share in the returned result includes this job's.
        """
        limits = Limits(memory_mb=self.config.memory_mb, cpu_seconds=self.config.seconds)
        log, name, done = b"", "", _NOTHING
        async with context.box(limits, change) as box:
            for step in job.steps:
                left = WALL * self.config.seconds - share.seconds
                name, done = step.name, await _run_step(box, step, max(0.1, left))
                share += done.share
                done = replace(done, share=share)
                log += f"{job.name}: {name}\n".encode() + done.stdout[-_LOG_BYTES:] + done.stderr[-_LOG_BYTES:]
                log = log[-_LOG_BYTES:]
                if done.code or done.limit:
                    break
            return name, done, log, (await box.stats()).memory_bytes


@lru_cache(maxsize=16)
def _parsed(workflow: bytes) -> tuple[Job, ...]:
    """Return the jobs of a workflow. They are cached, because a grading needs them again for each product (variant of
    the workspace's files)."""
    return tuple(parse_workflow(workflow))


async def _run_step(box: Box, step: Step, seconds: float) -> ExecResult:
    env = {**_CI_VARIABLES, **step.env}
    try:
        return await box.exec(list(step.command), timeout=seconds, cwd=step.folder, env=env)
    except (FileNotFoundError, NotADirectoryError, PermissionError, RequestRefused) as error:
        # The working directory does not exist or leads out of the workspace.
        return ExecResult(127, b"", f"{step.folder}: {error}\n".encode(), 0.0)
