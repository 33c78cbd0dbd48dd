"""Runs test.sh for one part of a Harbor task in a fresh box, and reads the reward. A part is one step, or a whole task
without steps.

In shared mode, test.sh runs in a box of the task's image with the change applied. In separate mode, it runs in another
box, made from the verifier's image. Only the declared artifacts are copied there from the task's box.
"""

from __future__ import annotations

import asyncio
import fnmatch
import io
import posixpath
import tarfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from etude.sandbox.contract import Box, BoxSpec
from etude.tasks.change import Change
from etude.tasks.fresh_box import fresh_box
from etude.tasks.harbor import Artifact, Environment, Healthcheck, Part
from etude.tasks.verifiers.contract import GradingContext
from etude.tasks.verifiers.harbor.box_setup import (
    ARTIFACTS,
    MAX_BYTES,
    TESTS,
    VERIFIER_LOGS,
    fresh_logs,
    limits_of,
    place_tests,
    tail,
    unpack_into,
    user_of,
)
from etude.tasks.verifiers.harbor.reward import LARGEST, BadReward, parse_reward
from etude.tasks.verifiers.produced_files import read_produced, read_produced_tree


@dataclass(frozen=True, slots=True)
class Attempt:
    """The result of running test.sh once for one part (one step, or the whole task)."""

    reward: Mapping[str, float] | None
    """All numbers that test.sh reported, by name; the score has the name `reward`. None if there is no valid reward."""
    problem: str = ""
    """Why there is no reward; empty if there is one."""
    limit: str = ""
    starved: bool = False
    """Whether the wall clock expired because the host gave the box no CPU time."""
    code: int | None = None
    log: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class PartSetup:
    part: Part
    environment: Environment
    tests: Mapping[str, Path]
    """Files to place at /tests in the box: for each path below /tests, the file's path on the host."""
    seconds: float
    env: Mapping[str, str]
    image: str = ""
    """Name of the verifier's own image; empty if it is built, or if the tests run in the task's image."""
    build: Path | None = None
    """Folder of the Dockerfile that the verifier's image is built from; None if it is not built."""

    @property
    def brings_tests(self) -> bool:
        """Whether test.sh runs in an image of the verifier's own, which already contains /tests."""
        return bool(self.image or self.build)


async def attempt(context: GradingContext, setup: PartSetup, change: Change) -> Attempt:
    started = time.monotonic()
    box_limits = limits_of(setup.environment, setup.seconds)
    async with context.box(box_limits, change) as box:
        await fresh_logs(box, user_of(None, context.sandboxes))
        if problem := await _unhealthy(box, setup.part.healthcheck, setup):
            return Attempt(None, problem, seconds=time.monotonic() - started)
        for hook in setup.part.verifier.collect:
            agent = user_of(setup.part.agent.user, context.sandboxes)
            await box.exec(hook.command, timeout=hook.timeout_sec, env=dict(setup.env), user=agent)
        if not setup.part.verifier.separate:
            return await _test(context, setup, box, started)
        artifacts = [
            found
            for item in (Artifact(source=ARTIFACTS), *setup.part.artifacts)
            if (found := await _read_artifact(box, item, context))
        ]
    return await _test_apart(context, setup, artifacts, started)


async def _test_apart(
    context: GradingContext, setup: PartSetup, artifacts: list[tuple[str, bytes]], started: float
) -> Attempt:
    own = setup.part.verifier.environment or setup.environment
    spec = BoxSpec(
        await _image(context, setup),
        workdir=own.workdir or ("" if setup.brings_tests else context.pristine.workdir),
        env=context.conditions.env,
        limits=limits_of(own, setup.seconds),
        name="grader",
    )
    async with fresh_box(context.sandboxes, spec) as box:
        await fresh_logs(box, user_of(None, context.sandboxes))
        for place, tar in artifacts:
            await unpack_into(box, place, tar, user_of(None, context.sandboxes))
        if problem := await _unhealthy(box, own.healthcheck, setup):
            return Attempt(None, problem, seconds=time.monotonic() - started)
        found = await _test(context, setup, box, started)
        context.cpu_seconds.append((await box.stats()).cpu_seconds)
        return found


async def _image(context: GradingContext, setup: PartSetup) -> str:
    if setup.image:
        return await context.sandboxes.pull_image(setup.image)
    if setup.build:
        return await context.sandboxes.build_image(setup.build)
    return context.pristine.image


async def _test(context: GradingContext, setup: PartSetup, box: Box, started: float) -> Attempt:
    await place_tests(box, {} if setup.brings_tests else setup.tests, user_of(None, context.sandboxes))
    user = user_of(setup.part.verifier.user, context.sandboxes)
    done = await box.exec(f"{TESTS}/test.sh", timeout=setup.seconds, env=dict(setup.env), user=user)
    reward, problem = None, ""
    try:
        written = [f"{VERIFIER_LOGS}/{name}" for name in ("reward.json", "reward.txt")]
        reward = parse_reward(*[await read_produced(box, path, LARGEST) for path in written])
    except BadReward as error:
        problem = str(error)
    if done.limit:
        # A reward that test.sh wrote earlier does not count, because it did not run to its end.
        reward, problem = None, f"test.sh exceeded its limit of {done.limit}"
    return Attempt(reward, problem, done.limit, done.starved, done.code, tail(done), time.monotonic() - started)


async def _unhealthy(box: Box, check: Healthcheck | None, setup: PartSetup) -> str:
    """Run the healthcheck until it succeeds or has failed too often. Return the problem, or an empty string. Failures
    in the start period do not count."""
    if check is None:
        return ""
    began, failures = time.monotonic(), 0
    while True:
        done = await box.exec(check.command, timeout=check.timeout_sec, env=dict(setup.env))
        if done.code == 0:
            return ""
        starting = time.monotonic() - began < check.start_period_sec
        failures += not starting
        if failures >= check.retries:
            return f"the healthcheck failed {failures} times: {tail(done).strip()[-200:] or f'exit code {done.code}'}"
        await asyncio.sleep(check.start_interval_sec if starting else check.interval_sec)


async def _read_artifact(box: Box, artifact: Artifact, context: GradingContext) -> tuple[str, bytes] | None:
    """Read an artifact from the box. Return the folder it belongs in and its contents as a tar, or None if it does not
    exist, cannot be read or is too large. Links are left out, because test.sh would follow a link out of the
    artifact."""
    source = posixpath.normpath(posixpath.join(context.pristine.workdir, artifact.source))
    tar = await read_produced_tree(box, source, MAX_BYTES)
    if tar is None:
        return None  # test.sh reports what is missing.
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive, tarfile.open(fileobj=out, mode="w") as kept:
        members = archive.getmembers()
        whole_folder = bool(members) and members[0].name == "."
        for member in members:
            excluded = any(
                fnmatch.fnmatch(member.name, pattern) or fnmatch.fnmatch(posixpath.basename(member.name), pattern)
                for pattern in artifact.exclude
            )
            if excluded or not (member.isfile() or member.isdir()):
                continue
            plain = tarfile.TarInfo(member.name)
            plain.type, plain.mode, plain.size = member.type, 0o755 if member.mode & 0o100 else 0o644, member.size
            kept.addfile(plain, archive.extractfile(member) if member.isfile() else None)
    return (source if whole_folder else posixpath.dirname(source)), out.getvalue()
