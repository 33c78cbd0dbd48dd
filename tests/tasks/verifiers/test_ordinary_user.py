"""The cases of this folder that run boxes, as an ordinary user with one id: right all the same, but not sealed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.needs import needs
from tests.tasks.ordinary_user import as_ordinary_user, passes

from etude.sandbox.contract import Feature
from etude.tasks import Grader, reference_diff

from ..conftest import Boxes
from . import projects

SUITES = ["test_running.py", "test_proving.py", "test_forgers.py", "test_ordinary_user.py"]


@as_ordinary_user
def test_boxes_of_an_ordinary_user() -> None:
    passes(*(f"verifiers/{name}" for name in SUITES))


@pytest.mark.parametrize("runner", ["unittest", pytest.param("node", marks=needs("node"))])
def test_a_verdict_is_sealed_where_a_second_user_runs_the_tests(boxes: Boxes, tmp_path: Path, runner: str) -> None:
    task = projects.project(tmp_path / "task", runner)

    async def run() -> None:
        async with boxes() as sandboxes:
            verdict = await Grader(sandboxes).grade(task, reference_diff(task))
            assert verdict.passed, verdict
            assert verdict.evidence.sealed == (Feature.SECOND_USER in sandboxes.features)
            assert verdict.evidence.memory_bytes > 1_000_000

    asyncio.run(run())
