"""The cases of this folder that run boxes, as an ordinary user with one id: right all the same, but not sealed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.sandbox.as_nobody import for_root, run_as_nobody

from etude.sandbox.contract import Feature
from etude.tasks import Grader, reference_diff

from ..conftest import Boxes
from . import projects

SUITES = ["test_running.py", "test_proving.py", "test_forgers.py", "test_ordinary_user.py"]


@pytest.mark.slow
@for_root
def test_boxes_of_an_ordinary_user() -> None:
    files = [f"tests/tasks/verifiers/{name}" for name in SUITES]
    words = ["-m", "pytest", "-x", "--tb=short", "-p", "no:cacheprovider", "-m", "not slow"]
    result = run_as_nobody(words, files, timeout=280)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-2000:]
    assert " passed" in result.stdout


@pytest.mark.parametrize("runner", ["unittest", "node"])
def test_a_verdict_is_sealed_where_a_second_user_runs_the_tests(boxes: Boxes, tmp_path: Path, runner: str) -> None:
    task = projects.project(tmp_path / "task", runner)

    async def run() -> None:
        async with boxes() as sandboxes:
            verdict = await Grader(sandboxes).grade(task, reference_diff(task))
            assert verdict.passed, verdict
            assert verdict.evidence.sealed == (Feature.SECOND_USER in sandboxes.features)
            assert verdict.evidence.memory_bytes > 1_000_000

    asyncio.run(run())
