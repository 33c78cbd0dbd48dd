"""The verifier of Dockerfiles (`type = "dockerfile"`): builds every product offline, and checks the resulting image.

The sandbox's builder makes the image, which is checked from outside: folders are read out of a box, and the output of
commands is compared with what the product requires. A Dockerfile may start from the task's `bases` (by default `host`
and `scratch`) and from its own stages. Any other image is refused, because an agent must not decide what is downloaded.

task.toml            [metadata.etude.verifier]  type = "dockerfile", writes, bases, seconds, memory_mb, disk_mb
tests/products.json  for each product: the fields that all builds share (`Product`), arguments (of the build), folders
                     (with their required files), answers (commands and what they must print)
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from etude.sandbox.contract import (
    Box,
    BoxSpec,
    BuildTerms,
    ImageError,
    Limits,
    RequestRefused,
    TriedBuild,
    TriesBuilds,
)
from etude.sandbox.images.build.dockerfile import parse_dockerfile
from etude.sandbox.images.build.instructions import Copy
from etude.sandbox.images.build.plan import make_plan
from etude.tasks.change import Change
from etude.tasks.fresh_box import fresh_box
from etude.tasks.task import Task
from etude.tasks.verifiers.contract import WALL, GradingContext
from etude.tasks.verifiers.produced_files import list_produced, read_produced
from etude.tasks.verifiers.script.products import (
    LARGEST,
    Artifact,
    BuildConfig,
    Product,
    ProductsVerifier,
    Trial,
    difference,
)

DOCKERFILE = "Dockerfile"
_LARGEST_DOCKERFILE = 32 << 10
"""Largest Dockerfile, in bytes. It is parsed outside of any box."""


class Answer(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    command: list[str] = Field(min_length=1)
    prints: str


class ImageProduct(Product):
    """A product of a Dockerfile's build. Its image must contain the files in `folders`, and the commands in `answers`
    must print the given output."""

    arguments: dict[str, str] = {}
    """Values of the Dockerfile's build arguments (ARG) for this product, by argument name."""
    folders: dict[str, dict[str, str]] = {}
    """Required files, by folder (absolute) and by path below it. These folders must contain no other files."""
    answers: list[Answer] = []
    """Commands, each with the output that it must print. They run in a box of the built image, in its working directory
    and with its environment variables."""


class _Config(BuildConfig):
    bases: list[str] = ["host", "scratch"]
    disk_mb: int = Field(256, ge=16)
    """Megabytes that a build step may write, and that commands in the image may write."""


class ImageVerifier(ProductsVerifier[_Config, ImageProduct]):
    def __init__(self, task: Task) -> None:
        super().__init__(task, _Config, ImageProduct)

    def invalid_reason(self, files: Mapping[str, bytes]) -> str:
        if DOCKERFILE not in files:
            return f"there is no {DOCKERFILE}"
        large = len(files[DOCKERFILE]) > _LARGEST_DOCKERFILE
        return f"{DOCKERFILE}: expected at most {_LARGEST_DOCKERFILE} bytes" if large else ""

    async def try_product(self, product: ImageProduct, context: GradingContext, change: Change) -> Trial:
        files = {**context.pristine.files, **change.files}
        build_context = {path: data for path, data in files.items() if data is not None}
        executable = context.pristine.executable | change.executable
        try:
            if name := _outside_image(build_context[DOCKERFILE].decode(), product.arguments, self.config.bases):
                return Trial(f"{DOCKERFILE}: {name} would be fetched: expected one of {', '.join(self.config.bases)}")
        except (ImageError, UnicodeDecodeError) as error:
            return _failed_build(product, str(error))
        with tempfile.TemporaryDirectory(prefix="etude-context-") as place:
            await asyncio.to_thread(_write, Path(place), build_context, executable)
            return await self._build(product, context, Path(place))

    async def _build(self, product: ImageProduct, context: GradingContext, build_context: Path) -> Trial:
        """Build a product's image and check it. The build has the environment variables of this grading's boxes. It has
        no cache, because every step must really run."""
        if not isinstance(context.sandboxes, TriesBuilds):
            raise RequestRefused(
                "dockerfile tasks need a sandbox that can try builds: set sandbox.mode to embedded, on this host"
            )
        terms = BuildTerms(self._limits(), WALL * self.config.seconds, context.conditions.env)
        build_log: deque[str] = deque(maxlen=100)
        tried = context.sandboxes.try_build(build_context, terms, arguments=product.arguments, say=build_log.append)
        async with tried as built:
            context.cpu_seconds.append(built.share.cpu_seconds)
            log = "\n".join(build_log).encode("utf-8", "replace")
            if (failure := built.failure) is None:
                trial = await self._check_image(product, context, built, log)
            elif failure.limit == "time":
                trial = Trial("the build was ended by its limit of time", True, built.share.starved, log=log)
            else:
                trial = _failed_build(product, str(failure))
        return replace(trial, memory_bytes=max(trial.memory_bytes, built.memory_bytes))

    def _limits(self) -> Limits:
        seconds, memory = self.config.seconds, self.config.memory_mb
        return Limits(memory_mb=memory, cpu_seconds=seconds, disk_mb=self.config.disk_mb)

    async def _check_image(
        self, product: ImageProduct, context: GradingContext, built: TriedBuild, log: bytes
    ) -> Trial:
        if not product.succeeds:
            return Trial("the build succeeded, though the product is broken", log=log)
        spec = BoxSpec(built.image, env=context.conditions.env, limits=self._limits(), name="grader")
        try:
            async with fresh_box(built.sandboxes, spec) as box:
                # Check the files before running anything in the image: a command may leave files.
                problem = await _wrong_file(box, product)
                trial = Trial(problem) if problem else await self._check_answers(box, product)
                used = await box.stats()
                context.cpu_seconds.append(used.cpu_seconds)
        except (ImageError, RequestRefused) as error:  # The image has no room for a box's mounts, or an unknown user.
            return Trial(f"the image cannot be run: {error}", log=log)
        return replace(trial, log=log, memory_bytes=used.memory_bytes)

    async def _check_answers(self, box: Box, product: ImageProduct) -> Trial:
        for answer in product.answers:
            done = await box.exec(answer.command, timeout=WALL * self.config.seconds)
            if done.code or done.limit:
                problem = f"in the image, {answer.command[0]} ends with {done.limit or done.code}"
                return Trial(problem, done.timed_out, done.starved)
            if problem := difference(done.stdout, Artifact(text=answer.prints)):
                return Trial(f"what {answer.command[0]} prints in the image: {problem}")
        return Trial()


def _failed_build(product: ImageProduct, build_log: str) -> Trial:
    problem = "the build failed, though the product is sound" if product.succeeds else ""
    return Trial(problem, log=build_log.encode("utf-8", "replace"))


def _outside_image(text: str, arguments: dict[str, str], bases: list[str]) -> str:
    """Return the first image that the build uses and that is neither its own stage nor an allowed base, or ""."""
    plan = make_plan(parse_dockerfile(text, DOCKERFILE), "", arguments)
    for stage in plan.dockerfile.stages:
        copied = [one.action.stage for one in stage.instructions if isinstance(one.action, Copy) and one.action.stage]
        for name in (plan.bases[stage.index], *copied):
            if name not in bases and plan.dockerfile.stage_before(name, stage.index) is None:
                return name
    return ""


def _write(top: Path, files: Mapping[str, bytes], executable: frozenset[str]) -> None:
    for path, data in files.items():
        place = top / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        place.chmod(0o755 if path in executable else 0o644)


async def _wrong_file(box: Box, product: ImageProduct) -> str:
    """Return the first difference between the image and the product's `folders`, or an empty string."""
    for folder, wanted in product.folders.items():
        listed = await list_produced(box, folder)
        if listed is None:
            return f"there is no folder {folder} that can be read"
        if differing := set(listed) ^ wanted.keys():
            return f"{folder} differs in {', '.join(sorted(differing)[:3])}"
        for path, text in wanted.items():
            if (data := await read_produced(box, f"{folder}/{path}", LARGEST)) is None:
                return f"there is no file {folder}/{path} that can be read"
            if problem := difference(data, Artifact(text=text)):
                return f"{folder}/{path}: {problem}"
    return ""
