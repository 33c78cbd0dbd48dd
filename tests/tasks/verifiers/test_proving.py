"""What is proven in real boxes: only what fails with the reference, and does not betray itself without it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from etude.sandbox.contract import Sandboxes
from etude.tasks import Environments, Grader, Judgement, Stand, reference_diff
from etude.tasks.change import Change
from etude.tasks.verifiers.tests import TestsVerifier, suite_files
from etude.tasks.verifiers.tests.pool import Pool, Questions

from ..conftest import Boxes
from . import projects

WRONG = "def double(n):\n    return n + n + 1\n\n\ndef text(n):\n    return 'n is ' + str(n + 1)\n"
RIGHT = WRONG.replace("n + n + 1", "n + n").replace("str(n + 1)", "str(n)")
TESTS = """
import datetime
import sys
import unittest

from a import double, text


class T(unittest.TestCase):
    def test_two_sites(self):
        self.assertIn("n is", text(4))
        self.assertIn("4", text(4))

    def test_branch(self):
        if sys.platform == "win32":
            self.assertEqual(double(1), 3)
        self.assertIn("6", text(6))

    def test_own_name(self):
        self.assertEqual(self.id().rpartition(".")[2], "test_own_name")
        self.assertIn("6", text(6))

    def test_not_plain(self):
        self.assertEqual([datetime.date(2020, 1, double(2))].count(datetime.date(2020, 1, 4)), 1)
        self.assertEqual(double(3), 6)

    def test_wide(self):
        self.assertGreater(double(50), 20)
"""
NAMES = ["two_sites", "branch", "own_name", "not_plain"]


def proven(boxes: Boxes, folder: Path) -> Pool:
    reference = projects.diff(WRONG, RIGHT, "a.py")
    ids = [f"tests.test_a.T.test_{name}" for name in NAMES]
    files = suite_files({"tests/test_a.py": TESTS.encode()}, ids, ["tests.test_a.T.test_wide"])
    task = projects.task(folder / "task", files, {"a.py": WRONG}, reference, {"runner": "unittest"})

    async def run() -> Pool:
        async with boxes() as sandboxes:
            verifier = TestsVerifier(task)
            assert not verifier.sealed, "nothing is proven yet"
            stand = Stand(task, sandboxes, await Environments(sandboxes).prepare(task), Change())
            verdicts = await asyncio.gather(*(verifier.examine(stand) for _ in range(2)))
            assert [verdict.judgement for verdict in verdicts] == [Judgement.FAIL] * 2
            assert verifier.pool is not None
            return verifier.pool

    return asyncio.run(run())


def test_what_is_proven(boxes: Boxes, tmp_path: Path) -> None:
    pool = proven(boxes, tmp_path)
    found: dict[str, Questions] = {asked.function.path[-1].removeprefix("test_"): asked for asked in pool.questions}
    source = pool.sources["tests/test_a.py"]

    def altered(name: str) -> set[bytes]:
        return {source[slice(*literal)] for literal, _ in found[name].alterations}

    # Without a solution the first assertion holds: a copy with another one would fail at another line.
    assert altered("two_sites") == {b'"4"'}
    # Nothing is told that no run has come by; the other assertion is asked in the box.
    assert found["branch"].withheld == ()
    assert altered("branch") == {b'"6"'}
    # A test that knows its own name is not asked under another one.
    assert found["own_name"].alterations == ()
    # What is right without a solution guards nothing; what is wrong does.
    assert len(found["not_plain"].withheld) == 2
    assert found["not_plain"].chance == 0.001 * 0.25
    # 100 is above any number like 20: a copy passes, so it is none.
    assert found["wide"].alterations == ()
    assert not found["wide"].decides
    assert pool.seconds > 0


def test_the_reference_is_run_once_however_many_ask(boxes: Boxes, tmp_path: Path) -> None:
    task = projects.project(tmp_path / "task", "unittest")

    async def run(sandboxes: Sandboxes) -> list[int]:
        boxes_made: list[int] = []
        create = sandboxes.create

        async def counted(spec):  # type: ignore[no-untyped-def]
            boxes_made.append(1)
            return await create(spec)

        sandboxes.create = counted  # type: ignore[method-assign]
        grader = Grader(sandboxes)
        diffs = ["", reference_diff(task), projects.diff(projects.WRONG, projects.RIGHT + "\n", "shop/prices.py")]
        await asyncio.gather(*(grader.grade(task, diff) for diff in diffs))
        return boxes_made

    async def opened() -> list[int]:
        async with boxes() as sandboxes:
            return await run(sandboxes)

    assert len(asyncio.run(opened())) == 2 + 3, "with the reference, without anything, and the three"


@pytest.mark.parametrize("reference", ["", "nonsense", None])
def test_without_a_reference_nothing_is_proven_nor_sealed(boxes: Boxes, tmp_path: Path, reference: str | None) -> None:
    task = projects.project(tmp_path / "task", "unittest")
    solution = reference_diff(task)
    path = task.directory / "solution/patch.diff"
    path.unlink() if reference is None else path.write_text(reference)

    async def run() -> None:
        async with boxes() as sandboxes:
            verdict = await Grader(sandboxes).grade(task, solution)
            assert verdict.passed
            assert verdict.evidence.withheld == 0
            assert not verdict.evidence.sealed

    asyncio.run(run())


def test_a_host_that_gives_no_time_to_the_proof_is_our_error(tmp_path: Path, boxes: Boxes) -> None:
    from etude.tasks.verifiers.tests import Account
    from etude.tasks.verifiers.tests import verifier as module

    task = projects.project(tmp_path / "task", "unittest")

    async def starved(*args: object) -> Account:
        return Account("n", 137, limit="time", starved=True)

    async def run() -> None:
        async with boxes() as sandboxes:
            grader = Grader(sandboxes)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(module, "run_exam", starved)
                assert (await grader.grade(task, "")).judgement is Judgement.ERROR
            assert (await grader.grade(task, reference_diff(task))).passed, "and it is proven later"

    asyncio.run(run())
