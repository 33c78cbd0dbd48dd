"""Whose fault it is that a build or a workflow did not end, under which conditions they run, and how they are read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from etude.sandbox.contract import BoxSpec, BoxStats, BuildFailed, BuildTerms, ExecResult, Sandboxes, TriedBuild
from etude.sandbox.cpu_share import Share
from etude.tasks import Judgement, Task
from etude.tasks.change import Change
from etude.tasks.conditions import GATE
from etude.tasks.environment import Prepared
from etude.tasks.verifiers import GradingContext, open_verifier
from etude.tasks.verifiers.script import ImageVerifier, WorkflowError, WorkflowVerifier, parse_workflow, workflows

from ..cheats.playing import written

SLEPT, HUNGRY = Share(30.0, 29.0, 3.0, 0.1), Share(30.0, 29.0, 3.0, 3.0)
"""On a host that is short of time: who did not want it, and who could not have it."""
LATE = ExecResult(137, b"", b"", 3.0, timed_out=True, limit="time", share=HUNGRY)
ASLEEP = replace(LATE, share=SLEPT)
HEAD = "jobs:\n  a:\n    steps:\n      - run: "
CPU, MEMORY = 7.5, 5 << 20


class FakeBox:
    def __init__(self, answer: ExecResult) -> None:
        self._answer = answer

    async def exec(self, command: list[str], **_: Any) -> ExecResult:
        return ExecResult(0, b"", b"", 0.0) if command[0] == "rm" else self._answer

    async def write_file(self, path: str, data: bytes, **_: Any) -> None: ...

    async def stats(self) -> BoxStats:
        return BoxStats(0, 0, CPU, 0, 0.0)

    async def destroy(self) -> None: ...

    async def list_files(self, path: str) -> list[str]:
        return ["all.txt"]

    async def read_file(self, path: str, **_: Any) -> bytes:
        return b"first\nsecond\n"


class FakeBuilds:
    """Sandboxes whose builds come out as they are told."""

    def __init__(self, failure: BuildFailed | None = None, answer: ExecResult = LATE, share: Share = HUNGRY) -> None:
        self._failure, self._answer, self.share = failure, answer, share
        self.terms: list[BuildTerms] = []
        self.specs: list[BoxSpec] = []

    @asynccontextmanager
    async def try_build(self, context: Path, terms: BuildTerms, **_: Any) -> AsyncIterator[TriedBuild]:
        self.terms.append(terms)
        yield TriedBuild(cast(Sandboxes, self), "image", self._failure, self.share, MEMORY)

    async def create(self, spec: BoxSpec) -> FakeBox:
        self.specs.append(spec)
        return FakeBox(self._answer)


def an_image_build(folder: Path, sandboxes: object) -> tuple[ImageVerifier, GradingContext]:
    (task,) = written(folder, "image-build")
    return ImageVerifier(task), stand_of(task, sandboxes, {"Dockerfile": b"FROM host\n"})


def stand_of(task: Task, sandboxes: object, files: dict[str, bytes]) -> GradingContext:
    return GradingContext(task, cast(Sandboxes, sandboxes), Prepared("host", "/work", files), Change({}), GATE[1])


NOT_DONE = BuildFailed("RUN x: not done", "time")


@pytest.mark.parametrize(
    ("sandboxes", "ours"),
    [
        (FakeBuilds(NOT_DONE), True),
        (FakeBuilds(NOT_DONE, share=SLEPT), False),
        (FakeBuilds(None, LATE, SLEPT), True),
        (FakeBuilds(None, ASLEEP), False),
    ],
    ids=["build", "build that slept", "answer", "answer that slept"],
)
def test_an_image_of_a_starved_host_is_our_fault(tmp_path: Path, sandboxes: FakeBuilds, ours: bool) -> None:
    verifier, context = an_image_build(tmp_path, sandboxes)
    trial = asyncio.run(verifier.try_product(verifier.products[0], context, Change({})))
    assert (trial.timed_out, trial.starved) == (True, ours)
    assert trial.problem
    assert trial.memory_bytes == MEMORY
    assert context.cpu_seconds[0] == sandboxes.share.cpu_seconds


@pytest.mark.parametrize("name", ["script-build", "workflow-check", "image-build"])
@pytest.mark.parametrize(("answer", "judgement"), [(LATE, Judgement.ERROR), (ASLEEP, Judgement.FAIL)])
def test_a_clock_that_expired_is_in_the_evidence(
    tmp_path: Path, name: str, answer: ExecResult, judgement: Judgement
) -> None:
    """It is what the gate goes by, where the clock of the boxes was moved."""
    (task,) = written(tmp_path, name)
    files = {"Dockerfile": b"FROM host\n", "ci.yml": f"{HEAD}x\n".encode()}
    late = FakeBuilds(NOT_DONE, answer, answer.share)
    verdict = asyncio.run(open_verifier(task).examine(stand_of(task, late, files)))
    assert (verdict.judgement, verdict.evidence.timed_out) == (judgement, True)


def test_what_failed_without_the_clock_is_not_told_to_have_waited(tmp_path: Path) -> None:
    (task,) = written(tmp_path, "script-build")
    crashes = FakeBuilds(None, ExecResult(137, b"", b"", 3.0, limit="memory", share=HUNGRY))
    verdict = asyncio.run(open_verifier(task).examine(stand_of(task, crashes, {})))
    assert (verdict.judgement, verdict.evidence.timed_out) == (Judgement.FAIL, False)


def test_a_build_that_failed_by_itself_is_never_excused(tmp_path: Path) -> None:
    verifier, context = an_image_build(tmp_path, FakeBuilds(BuildFailed("RUN x: full", "disk")))
    trials = {
        one.succeeds: asyncio.run(verifier.try_product(one, context, Change({}))) for one in reversed(verifier.products)
    }
    assert trials[True].problem == "the build failed, though the product is sound"
    assert not trials[True].starved
    assert trials[False].problem == ""


def test_a_build_and_its_image_have_the_conditions_and_the_limits(tmp_path: Path) -> None:
    sandboxes = FakeBuilds()
    verifier, context = an_image_build(tmp_path, sandboxes)
    asyncio.run(verifier.try_product(verifier.products[0], context, Change({})))
    (terms,), (spec,) = sandboxes.terms, sandboxes.specs
    assert terms.env == spec.env == GATE[1].env
    assert terms.limits == spec.limits
    config = verifier.config
    found = (terms.limits.cpu_seconds, terms.limits.memory_mb, terms.limits.disk_mb, terms.seconds)
    assert found == (config.seconds, config.memory_mb, config.disk_mb, 3.0 * config.seconds)


@pytest.mark.parametrize(("first", "ours"), [(HUNGRY, True), (SLEPT, False)])
def test_jobs_share_a_clock_and_so_what_they_were_given(tmp_path: Path, first: Share, ours: bool) -> None:
    """The first job was given too little, or slept; either way it left nothing to the second."""
    (task,) = written(tmp_path, "workflow-check")
    given = 3.0 * float(task.verifier["seconds"])
    ends = [
        ExecResult(0, b"", b"", 0.0, share=replace(first, seconds=given - 0.5)),
        replace(LATE, share=Share(0.5, 0.5, 0.05, 0.0)),
    ]
    asked: list[float] = []

    class Steps(FakeBox):
        async def exec(self, command: list[str], *, timeout: float = 0.0, **_: Any) -> ExecResult:
            asked.append(timeout)
            return ends.pop(0)

    class Boxes(FakeBuilds):
        async def create(self, spec: BoxSpec) -> FakeBox:
            return Steps(LATE)

    text = HEAD + "x\n" + "  b:\n    steps:\n      - run: x\n"
    context = stand_of(task, Boxes(), {"ci.yml": text.encode()})
    verifier = WorkflowVerifier(task)
    trial = asyncio.run(verifier.try_product(verifier.products[0], context, Change({})))
    assert trial.problem == "b: jobs.b.steps[0] was ended by its limit of time"
    assert (trial.timed_out, trial.starved) == (True, ours)
    assert asked == pytest.approx([given, 0.5])


def test_a_workflow_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    def parse(data: bytes) -> list[object]:
        seen.append(data)
        return [data]

    monkeypatch.setattr(workflows, "parse_workflow", parse)
    text = f"{HEAD}true # {tmp_path}\n".encode()
    for _ in range(3):
        assert WorkflowVerifier(written(tmp_path, "workflow-check")[0]).invalid_reason({"ci.yml": text}) == ""
    assert seen == [text]


MANY = "".join(f"  j{number}: {{needs: j{number + 1}, steps: [{{run: x}}]}}\n" for number in range(1400))
MANY += "  j1400: {steps: [{run: x}]}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD + "echo " + "${{" * 20_000 + "\n", "expected }} after"),
        (HEAD + "echo " + "${{ matrix.a }}" * 4_000 + "\n", "of this job"),
        (
            HEAD.replace("a:\n", f"a:\n    strategy: {{matrix: {{a: [{'x' * 20_000}]}}}}\n") + "${{matrix.a}}" * 3000,
            "1048576",
        ),
        (HEAD.replace("jobs:", f"env: {{A: {'x' * 60_000}}}\njobs:") + "x\n" + "      - run: x\n" * 60, "1048576"),
        (f"jobs:\n{MANY}", "at most 24 jobs"),
    ],
    ids=["open", "unknown", "values", "variables", "jobs"],
)
def test_no_workflow_takes_long_to_refuse(text: str, said: str) -> None:
    spent: list[float] = []
    while not spent or (spent[-1] >= 1.0 and len(spent) < 2):
        began = time.process_time()
        with pytest.raises(WorkflowError, match=said) as caught:
            parse_workflow(text.encode())
        spent.append(time.process_time() - began)
    assert len(str(caught.value)) < 300
    assert spent[-1] < 1.0, "read in linear time"
