"""The verifier of build scripts (`type = "script"`): runs a command on every product (a hidden variant of the
workspace), reads its artifacts from the box, and checks them.

task.toml: the table [metadata.etude.verifier] has type = "script", command, writes, seconds and memory_mb.
"""

from __future__ import annotations

from pydantic import Field

from etude.sandbox.contract import Box, ExecResult, Limits
from etude.tasks.change import Change
from etude.tasks.task import Task
from etude.tasks.verifiers.contract import WALL, GradingContext
from etude.tasks.verifiers.produced_files import read_produced
from etude.tasks.verifiers.script.products import (
    LARGEST,
    BuildConfig,
    Product,
    ProductsVerifier,
    Trial,
    difference,
)


class _Config(BuildConfig):
    command: list[str] = Field(min_length=1)


class ScriptVerifier(ProductsVerifier[_Config, Product]):
    def __init__(self, task: Task) -> None:
        super().__init__(task, _Config, Product)

    async def try_product(self, product: Product, context: GradingContext, change: Change) -> Trial:
        limits = Limits(memory_mb=self.config.memory_mb, cpu_seconds=self.config.seconds)
        async with context.box(limits, change) as box:
            done = await box.exec(self.config.command, timeout=WALL * self.config.seconds)
            problem = await _problem(box, product, done)
            used = await box.stats()
        return Trial(problem, done.timed_out, done.starved, done.code, done.stdout + done.stderr, used.memory_bytes)


async def _problem(box: Box, product: Product, done: ExecResult) -> str:
    if done.limit:
        return f"the script was ended by its limit of {done.limit}"
    if not product.succeeds:
        return "" if done.code else "the script succeeded, though the product is broken"
    if done.code:
        return f"the script failed with exit code {done.code}, though the product is sound"
    for path, artifact in product.artifacts.items():
        if (data := await read_produced(box, path, LARGEST)) is None:
            return f"there is no file {path} that can be read"
        if problem := difference(data, artifact):
            return f"{path}: {problem}"
    return ""
