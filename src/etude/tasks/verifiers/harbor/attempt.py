"""One attempt at one part of a Harbor task: runs its test.sh in a fresh box and reads the reward.

In shared mode, the box is the task's own with the change applied. In separate mode, only the declared artifacts are
taken from the task's box, and test.sh sees them in another box, made from the verifier's image.
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

from etude.sandbox.contract import Box, BoxSpec, RequestRefused
from etude.tasks.change import Change
from etude.tasks.fresh_box import fresh_box
from etude.tasks.harbor import Artifact, Environment, Healthcheck, Part
from etude.tasks.verifiers.contract import Stand
from etude.tasks.verifiers.harbor.places import (
    ARTIFACTS,
    MAX_BYTES,
    TESTS,
    VERIFIER_LOGS,
    fresh_logs,
    lay_tests,
    limits_of,
    put,
    read_or_none,
    tail,
    user_of,
)
from etude.tasks.verifiers.harbor.reward import LARGEST, BadReward, Reward, parse_reward


@dataclass(frozen=True, slots=True)
class Attempt:
    reward: Reward | None
    problem: str = ""
    """Why there is no reward."""
    limit: str = ""
    """The limit that ended test.sh."""
    starved: bool = False
    """The limit was the wall clock, and it expired because the host gave the box no time."""
    code: int | None = None
    log: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Exam:
    """Everything needed to run the tests of one part, collected from the task."""

    part: Part
    environment: Environment
    tests: Mapping[str, Path]
    """Files to place at /tests."""
    seconds: float
    env: Mapping[str, str]
    image: str = ""
    """The verifier's own image in separate mode; empty for a fresh box of the task's image."""
    build: Path | None = None
    """Folder of the Dockerfile to build the verifier's image from, if it has one."""

    @property
    def brings_tests(self) -> bool:
        """Whether the verifier has an image of its own, which contains /tests."""
        return bool(self.image or self.build)


async def attempt(stand: Stand, exam: Exam, change: Change) -> Attempt:
    started = time.monotonic()
    box_limits = limits_of(exam.environment, exam.seconds)
    async with stand.box(box_limits, change) as box:
        await fresh_logs(box, user_of(None, stand.sandboxes))
        if problem := await _unhealthy(box, exam.part.healthcheck, exam):
            return Attempt(None, problem, seconds=time.monotonic() - started)
        for hook in exam.part.verifier.collect:
            agent = user_of(exam.part.agent.user, stand.sandboxes)
            await box.exec(hook.command, timeout=hook.timeout_sec, env=dict(exam.env), user=agent)
        if not exam.part.verifier.separate:
            return await _test(stand, exam, box, started)
        artifacts = [found for item in _declared(exam.part) if (found := await _taken(box, item, stand))]
    return await _test_apart(stand, exam, artifacts, started)


async def _test_apart(stand: Stand, exam: Exam, artifacts: list[tuple[str, bytes]], started: float) -> Attempt:
    own = exam.part.verifier.environment or exam.environment
    spec = BoxSpec(
        await _image(stand, exam),
        workdir=own.workdir or ("" if exam.brings_tests else stand.pristine.workdir),
        env=stand.conditions.env,
        limits=limits_of(own, exam.seconds),
        name="grader",
    )
    async with fresh_box(stand.sandboxes, spec) as box:
        await fresh_logs(box, user_of(None, stand.sandboxes))
        for place, tar in artifacts:
            await put(box, place, tar, user_of(None, stand.sandboxes))
        if problem := await _unhealthy(box, own.healthcheck, exam):
            return Attempt(None, problem, seconds=time.monotonic() - started)
        found = await _test(stand, exam, box, started)
        stand.cpu_seconds.append((await box.stats()).cpu_seconds)
        return found


async def _image(stand: Stand, exam: Exam) -> str:
    if exam.image:
        return await stand.sandboxes.pull_image(exam.image)
    if exam.build:
        return await stand.sandboxes.build_image(exam.build)
    return stand.pristine.image


async def _test(stand: Stand, exam: Exam, box: Box, started: float) -> Attempt:
    await lay_tests(box, {} if exam.brings_tests else exam.tests, user_of(None, stand.sandboxes))
    user = user_of(exam.part.verifier.user, stand.sandboxes)
    done = await box.exec(f"{TESTS}/test.sh", timeout=exam.seconds, env=dict(exam.env), user=user)
    reward, problem = None, ""
    try:
        files = [await _reward_file(box, name) for name in ("reward.json", "reward.txt")]
        reward = parse_reward(*files)
    except BadReward as error:
        problem = str(error)
    if done.limit:
        # A reward written before does not count: test.sh did not run to its end.
        reward, problem = None, f"it went beyond its limit of {done.limit}"
    return Attempt(reward, problem, done.limit, done.starved, done.code, tail(done), time.monotonic() - started)


async def _reward_file(box: Box, name: str) -> bytes | None:
    try:
        return await read_or_none(box, f"{VERIFIER_LOGS}/{name}", LARGEST + 1)
    except RequestRefused as error:
        raise BadReward(f"{name}: {error}") from None


async def _unhealthy(box: Box, check: Healthcheck | None, exam: Exam) -> str:
    """Run the healthcheck until it succeeds. Returns empty, or the problem after too many failures; failures during
    the start period do not count."""
    if check is None:
        return ""
    began, failures = time.monotonic(), 0
    while True:
        done = await box.exec(check.command, timeout=check.timeout_sec, env=dict(exam.env))
        if done.code == 0:
            return ""
        starting = time.monotonic() - began < check.start_period_sec
        failures += not starting
        if failures >= check.retries:
            return f"the healthcheck failed {failures} times: {tail(done).strip()[-200:] or f'exit code {done.code}'}"
        await asyncio.sleep(check.start_interval_sec if starting else check.interval_sec)


def _declared(part: Part) -> tuple[Artifact, ...]:
    return (Artifact(source=ARTIFACTS), *part.artifacts)


async def _taken(box: Box, artifact: Artifact, stand: Stand) -> tuple[str, bytes] | None:
    """The folder and the tar of an artifact. Only plain files and folders are kept, because a link could lead test.sh
    anywhere."""
    source = posixpath.normpath(posixpath.join(stand.pristine.workdir, artifact.source))
    try:
        tar = await box.read_tree(source, max_bytes=MAX_BYTES)
    except (FileNotFoundError, RequestRefused):
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
