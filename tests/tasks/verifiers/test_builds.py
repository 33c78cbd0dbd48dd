"""Whose fault it is that a build or a workflow did not end, under which conditions they run, and how they are read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from etude.sandbox.contract import BoxSpec, BoxStats, BuildFailed, BuildTerms, ExecResult, Sandboxes, TriedBuild
from etude.tasks import Task
from etude.tasks.change import Change
from etude.tasks.cheats.environments import micro_environments
from etude.tasks.conditions import GATE
from etude.tasks.environment import Prepared
from etude.tasks.verifiers import Stand
from etude.tasks.verifiers.script import ImageVerifier, WorkflowError, WorkflowVerifier, parse_workflow, workflows
from etude.tasks.verifiers.tests.starvation import Watch

LATE = ExecResult(137, b"", b"", 3.0, limit="time")
HEAD = "jobs:\n  a:\n    steps:\n      - run: "
CPU, MEMORY = 7.5, 5 << 20


class FakeBox:
    def __init__(self, answer: ExecResult) -> None:
        self._answer = answer

    async def exec(self, *_: Any, **__: Any) -> ExecResult:
        return self._answer

    async def stats(self) -> BoxStats:
        return BoxStats(0, 0, CPU, 0, 0.0)

    async def destroy(self) -> None: ...

    async def list_files(self, path: str) -> list[str]:
        return ["all.txt"]

    async def read_file(self, path: str, **_: Any) -> bytes:
        return b"first\nsecond\n"


class FakeBuilds:
    """Sandboxes whose builds come out as they are told."""

    def __init__(self, failure: BuildFailed | None = None, answer: ExecResult = LATE) -> None:
        self._failure, self._answer = failure, answer
        self.terms: list[BuildTerms] = []
        self.specs: list[BoxSpec] = []

    @asynccontextmanager
    async def try_build(self, context: Path, terms: BuildTerms, **_: Any) -> AsyncIterator[TriedBuild]:
        self.terms.append(terms)
        yield TriedBuild(cast(Sandboxes, self), "image", self._failure, CPU, MEMORY)

    async def create(self, spec: BoxSpec) -> FakeBox:
        self.specs.append(spec)
        return FakeBox(self._answer)


def task_named(name: str, folder: Path) -> Task:
    return next(micro for micro in micro_environments() if micro.name == name).write(folder)


def stand_of(task: Task, sandboxes: object, files: dict[str, bytes]) -> Stand:
    return Stand(task, cast(Sandboxes, sandboxes), Prepared("host", "/work", files), Change({}), GATE[1])


@pytest.fixture
def starving(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A host that gives no time to who used at least 7 seconds of it; and the seconds that were asked about."""
    asked: list[float] = []

    def starved(_: Watch, cpu_seconds: float) -> bool:
        asked.append(cpu_seconds)
        return cpu_seconds >= 7

    monkeypatch.setattr(Watch, "starved", starved)
    return asked


@pytest.mark.parametrize(
    "sandboxes", [FakeBuilds(BuildFailed("RUN x: not done", "time")), FakeBuilds(None, LATE)], ids=["build", "answer"]
)
def test_an_image_of_a_starved_host_is_our_fault(starving: list[float], tmp_path: Path, sandboxes: FakeBuilds) -> None:
    task = task_named("image-build", tmp_path)
    verifier = ImageVerifier(task)
    stand = stand_of(task, sandboxes, {"Dockerfile": b"FROM host\n"})
    trial = asyncio.run(verifier.try_on(verifier.products[0], stand, Change({})))
    assert trial.ours
    assert starving == [CPU]
    assert max(stand.cpu_seconds) == CPU
    assert trial.memory_bytes == MEMORY


def test_a_build_that_failed_by_itself_is_never_excused(starving: list[float], tmp_path: Path) -> None:
    task = task_named("image-build", tmp_path)
    verifier = ImageVerifier(task)
    stand = stand_of(task, FakeBuilds(BuildFailed("RUN x: full", "disk")), {"Dockerfile": b"FROM host\n"})
    trials = {one.succeeds: asyncio.run(verifier.try_on(one, stand, Change({}))) for one in reversed(verifier.products)}
    assert trials[True].problem == "the build failed, though the product is sound"
    assert not trials[True].ours
    assert trials[False].problem == ""


def test_a_build_and_its_image_have_the_conditions_and_the_limits(starving: list[float], tmp_path: Path) -> None:
    task = task_named("image-build", tmp_path)
    verifier, sandboxes = ImageVerifier(task), FakeBuilds()
    stand = stand_of(task, sandboxes, {"Dockerfile": b"FROM host\n"})
    asyncio.run(verifier.try_on(verifier.products[0], stand, Change({})))
    (terms,), (spec,) = sandboxes.terms, sandboxes.specs
    assert terms.env == spec.env == GATE[1].env
    assert terms.limits == spec.limits
    config = verifier.config
    found = (terms.limits.cpu_seconds, terms.limits.memory_mb, terms.limits.disk_mb, terms.seconds)
    assert found == (config.seconds, config.memory_mb, config.disk_mb, 3.0 * config.seconds)


def test_jobs_share_a_clock_and_so_what_they_were_given(
    starving: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first job was given too little, and left nothing to the second."""
    task = task_named("workflow-check", tmp_path)
    ends = [(ExecResult(0, b"", b"", 30.0), 7.0), (LATE, 0.25)]

    async def run(self: object, job: object, *_: object) -> tuple[str, ExecResult, bytes, BoxStats]:
        done, cpu = ends.pop(0)
        return "step", done, b"", BoxStats(0, 0, cpu, 0, 0.0)

    monkeypatch.setattr(WorkflowVerifier, "_run", run)
    verifier = WorkflowVerifier(task)
    text = HEAD + "x\n" + "  b:\n    steps:\n      - run: x\n"
    stand = stand_of(task, None, {"ci.yml": text.encode()})
    trial = asyncio.run(verifier.try_on(verifier.products[0], stand, Change({})))
    assert (trial.problem, trial.ours) == ("b: step was ended by its limit of time", True)
    assert starving == [7.25]


def test_a_workflow_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    def parse(data: bytes) -> list[object]:
        seen.append(data)
        return [data]

    monkeypatch.setattr(workflows, "parse_workflow", parse)
    text = f"{HEAD}true # {tmp_path}\n".encode()
    for _ in range(3):
        assert WorkflowVerifier(task_named("workflow-check", tmp_path)).unreadable({"ci.yml": text}) == ""
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
    spent = []
    for _ in range(2):
        began = time.process_time()
        with pytest.raises(WorkflowError, match=said) as caught:
            parse_workflow(text.encode())
        spent.append(time.process_time() - began)
    assert len(str(caught.value)) < 300
    assert min(spent) < 1.0, "read in linear time"
