"""A proof outlives its process: whoever comes later draws from it at once, unless something that it follows from is
another."""

from __future__ import annotations

import random
import stat
from collections.abc import Awaitable, Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.needs import needs

from etude.cli.tasks.wording import grading_of
from etude.sandbox.contract import BoxSpec, Sandboxes
from etude.tasks import Environments, Grader, GradingContext, Task, Verdict, reference_diff
from etude.tasks.change import Change
from etude.tasks.seal import base_scan
from etude.tasks.verifiers.tests import TestsVerifier, proof, suite_files
from etude.tasks.verifiers.tests.drawing import chance_left, draw_exam
from etude.tasks.verifiers.tests.pool import AlterableTest, Pool, alterable_tests
from etude.tasks.verifiers.tests.proof import dump_proof, guess_of, load_proof

from ..cheats.playing import written
from . import projects
from .test_drawing import FILE, SOURCE, SUITE
from .test_drawing import pool as pool_as_if_proven

Graded = Callable[..., Awaitable[tuple[Verdict, int]]]


@pytest.fixture
def graded(sandboxes: Sandboxes, examined: list[BoxSpec], tmp_path: Path) -> Graded:
    """A verdict as of a process of its own, which knows of earlier ones by their store, and how many boxes it took."""

    async def grade(task: Task, diff: str = "") -> tuple[Verdict, int]:
        examined.clear()
        environments = Environments(sandboxes, tmp_path / "environments")
        return await Grader(sandboxes, environments=environments).grade(task, diff), len(examined)

    return grade


@pytest.mark.parametrize("name", ["unittest-spans", pytest.param("node-cart", marks=needs("node"))])
async def test_the_next_process_proves_nothing_again(graded: Graded, seals: bool, tmp_path: Path, name: str) -> None:
    (task,) = written(tmp_path, name)
    assert grading_of(task, tmp_path) == "not run yet"
    first, examined = await graded(task, reference_diff(task))
    assert examined == 3, "with the reference, without anything, and the grading"
    again, examined = await graded(task, reference_diff(task))
    assert examined == 1
    assert first.passed
    assert again.passed
    for verdict in (first, again):
        assert verdict.evidence.sealed == seals
        assert verdict.evidence.withheld > 0
    assert first.evidence.memory_bytes > 1_000_000
    assert grading_of(task, tmp_path) == ("sealed" if seals else "open")
    assert grading_of(task, tmp_path / "another") == "not run yet"
    (kept,) = tmp_path.glob("environments/*.proof")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def _added(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


CHANGES: dict[str, Callable[[Task, Path, pytest.MonkeyPatch], object]] = {
    "damage": lambda task, kept, _: kept.write_bytes(kept.read_bytes().replace(b'"seconds": ', b'"seconds": 0')),
    "cut": lambda task, kept, _: kept.write_bytes(kept.read_bytes()[:-3]),
    "suite": lambda task, *_: _added(task.directory / "tests/files/tests/test_prices.py", "\nANOTHER = True\n"),
    "reference": lambda task, *_: (task.directory / "solution/patch.diff").write_text(
        projects.diff(projects.WRONG, projects.RIGHT + "\n", "shop/prices.py")
    ),
    "environment": lambda task, *_: (task.directory / "environment/repo/more.py").write_text("more = 1\n"),
    "code": lambda task, kept, patch: patch.setattr(proof, "_code", lambda: "of another version"),
    "host": lambda task, kept, patch: patch.setattr(base_scan, "_FORMAT", "as if something had been installed"),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
async def test_what_follows_from_something_else_is_proven_again(graded: Graded, tmp_path: Path, change: str) -> None:
    task = projects.project(tmp_path / "task", "unittest")
    await graded(task)
    (kept,) = tmp_path.glob("environments/*.proof")
    with pytest.MonkeyPatch.context() as patch:
        CHANGES[change](task, kept, patch)
        assert [(await graded(task))[1] for _ in range(2)] == [3, 1]


async def test_that_a_test_needs_its_remarks_is_found_out_once(graded: Graded, tmp_path: Path) -> None:
    hidden = """import pathlib
import unittest

from a import total


class T(unittest.TestCase):
    def test_it(self):
        # A remark.
        self.assertEqual(total(4700), 4711)
        self.assertIn("# A " + "remark", pathlib.Path(__file__).read_text())
"""
    files = suite_files({"tests/test_a.py": hidden.encode()}, ["tests.test_a.T.test_it"])
    wrong, right = "def total(n):\n    return n\n", "def total(n):\n    return n + 11\n"
    reference = projects.diff(wrong, right, "a.py")
    task = projects.task(tmp_path / "task", files, {"a.py": wrong}, reference, {"runner": "unittest"})
    verdicts = [await graded(task, reference) for _ in range(2)]
    assert [(verdict.passed, examined) for verdict, examined in verdicts] == [(True, 4), (True, 1)]


async def test_limits_that_the_gate_set_are_nothing_that_it_follows_from(graded: Graded, tmp_path: Path) -> None:
    task = projects.project(tmp_path / "task", "unittest")
    await graded(task)
    assert (await graded(replace(task, verifier={**task.verifier, "seconds": 7, "memory_mb": 300})))[1] == 1


def test_without_a_reference_it_is_known_to_be_open(tmp_path: Path) -> None:
    task = projects.project(tmp_path / "task", "unittest")
    (task.directory / "solution/patch.diff").unlink()
    assert grading_of(task, tmp_path) == "open"
    assert TestsVerifier(task).load_stored_proof(tmp_path)


@settings(max_examples=25)
@given(st.booleans(), st.integers(0, 40), st.floats(0, 2), st.integers())
def test_what_is_read_draws_the_same_exams(withheld: bool, alterations: int, seconds: float, seed: int) -> None:
    made = pool_as_if_proven(withheld=withheld, alterations=alterations, seconds=seconds)
    data = dump_proof(made, chance_left(made))
    read = load_proof(data, SUITE, {FILE: SOURCE})
    assert guess_of(data) == chance_left(made) == chance_left(read)
    exams = [draw_exam(SUITE, pool, random.Random(seed)) for pool in (made, read)]
    assert exams[0].controls == exams[1].controls
    assert list(exams[0].tests.values()) == list(exams[1].tests.values())
    assert [[one.values for one in kept] for kept in exams[0].withheld.values()] == [
        [one.values for one in kept] for kept in exams[1].withheld.values()
    ]


@settings(max_examples=25)
@given(st.data())
def test_a_damaged_proof_is_none(draw: st.DataObject) -> None:
    made = pool_as_if_proven()
    data = bytearray(dump_proof(made, 0.5))
    place = draw.draw(st.integers(0, len(data) - 1))
    data[place] ^= draw.draw(st.integers(1, 255))
    assert load_proof(bytes(data), SUITE, {FILE: SOURCE}) is None
    assert load_proof(bytes(data[:place]), SUITE, {FILE: SOURCE}) is None
    assert guess_of(bytes(data)) == 1.0


def test_that_nothing_can_be_proven_is_kept_too() -> None:
    assert load_proof(dump_proof(Pool(seconds=1.5), 1.0), SUITE, {FILE: SOURCE}) == Pool(seconds=1.5)
    assert alterable_tests(SUITE, FILE, {FILE: SOURCE})


async def test_all_that_was_decided_is_kept(sandboxes: Sandboxes, tmp_path: Path) -> None:
    """Of a pool that was proven; who adds a field to it says here whether it is decided or read."""
    assert {one.name for one in fields(Pool)} == {"sources", "alterable", "names", "seconds", "held"}
    read = {"file", "function", "tests", "decides"}
    assert {one.name for one in fields(AlterableTest)} - read == {
        "seconds",
        "alterations",
        "withheld",
        "chance",
        "ways_to_tell",
    }
    task = projects.project(tmp_path / "task", "pytest")
    verifier = TestsVerifier(task)
    await verifier.examine(GradingContext(task, sandboxes, await Environments(sandboxes).prepare(task), Change()))
    made = verifier.pool
    assert made.alterable
    data = dump_proof(made, 0.5)
    read = load_proof(data, verifier.suite, made.sources)
    assert dump_proof(read, 0.5) == data
    assert (read.sources, read.names, read.seconds, read.held) == (
        made.sources,
        made.names,
        made.seconds,
        made.held,
    )
