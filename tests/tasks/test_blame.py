"""Whose fault it is that a grading ends in an error: the reference, graded in turn with the change, tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from etude.sandbox.contract import Sandboxes, SandboxLost
from etude.tasks import Evidence, Grader, GradingContext, Judgement, Task, Verdict, register_verifier
from etude.tasks import verifiers as registry
from etude.tasks.grader import REPEATS

from .verifiers import projects

DIFF = "--- /dev/null\n+++ b/said.txt\n@@ -0,0 +1 @@\n+breaks it\n"
FAIL = Verdict(Judgement.FAIL, "judged")
STARVED = Verdict(Judgement.ERROR, "the clock", Evidence(timed_out=True, starved=True))
STUCK = Verdict(Judgement.ERROR, "the tests do not start", Evidence(timed_out=True))


class Breaks:
    """Does `change` for a change that adds said.txt, and `reference` for every other, as often as it is asked."""

    sealed = False

    def __init__(self, change: Callable[[int], Verdict], reference: Callable[[int], Verdict]) -> None:
        self._change, self._reference = change, reference
        self.asked = {"change": 0, "reference": 0}

    def protects(self, path: str) -> bool:
        return False

    async def examine(self, context: GradingContext) -> Verdict:
        which = "change" if "said.txt" in context.change.files else "reference"
        self.asked[which] += 1
        return (self._change if which == "change" else self._reference)(self.asked[which])


def raises(error: Exception, times: int = 99) -> Callable[[int], Verdict]:
    def act(turn: int) -> Verdict:
        if turn <= times:
            raise error
        return FAIL

    return act


def judges(turn: int) -> Verdict:
    return FAIL


LOST, BUG = SandboxLost("gone"), KeyError("bug")


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    monkeypatch.setattr(registry, "_VERIFIERS", dict(registry._VERIFIERS))
    return replace(projects.project(tmp_path / "task", "unittest"), verifier={"type": "breaks"})


async def graded(sandboxes: Sandboxes, task: Task, verifier: Breaks, diff: str = DIFF) -> Verdict:
    register_verifier("breaks", lambda task: verifier)
    return await Grader(sandboxes).grade(task, diff)


@pytest.mark.parametrize("error", [LOST, OSError(36, "File name too long"), RecursionError("deep"), MemoryError(), BUG])
async def test_what_only_the_change_brings_about_is_its_fault(
    sandboxes: Sandboxes, task: Task, error: Exception
) -> None:
    verifier = Breaks(raises(error), judges)
    verdict = await graded(sandboxes, task, verifier)
    assert verdict.judgement is Judgement.FAIL
    assert type(error).__name__ in verdict.reason
    assert verifier.asked == {"change": 1 + REPEATS, "reference": REPEATS}


@pytest.mark.parametrize("times", [1, REPEATS])
async def test_a_repetition_that_gets_a_verdict_is_the_verdict(sandboxes: Sandboxes, task: Task, times: int) -> None:
    assert await graded(sandboxes, task, Breaks(raises(LOST, times), judges)) == FAIL


async def test_what_the_reference_meets_too_is_ours(sandboxes: Sandboxes, task: Task) -> None:
    verifier = Breaks(raises(LOST), raises(LOST))
    assert (await graded(sandboxes, task, verifier)).judgement is Judgement.ERROR
    assert verifier.asked == {"change": 1, "reference": 1}


async def test_the_reference_is_no_witness_in_its_own_case(sandboxes: Sandboxes, task: Task) -> None:
    reference = (task.directory / "solution/patch.diff").read_text()
    verifier = Breaks(judges, raises(LOST))
    assert (await graded(sandboxes, task, verifier, reference)).judgement is Judgement.ERROR
    assert verifier.asked == {"change": 0, "reference": 1}


async def test_a_bug_of_ours_is_raised(sandboxes: Sandboxes, task: Task) -> None:
    with pytest.raises(KeyError, match="bug"):
        await graded(sandboxes, task, Breaks(raises(BUG), raises(BUG)))


async def test_a_host_without_time_is_to_blame(sandboxes: Sandboxes, task: Task) -> None:
    verifier = Breaks(lambda turn: STARVED, judges)
    assert await graded(sandboxes, task, verifier) == STARVED
    assert verifier.asked == {"change": 1, "reference": 0}


async def test_a_clock_that_expires_on_a_host_with_time_is_not(sandboxes: Sandboxes, task: Task) -> None:
    assert (await graded(sandboxes, task, Breaks(lambda turn: STUCK, judges))).judgement is Judgement.FAIL


async def test_a_verdict_can_be_stored_whatever_its_texts_hold(sandboxes: Sandboxes, task: Task) -> None:
    said = Verdict(Judgement.FAIL, "\udcff" + "x" * 9000, Evidence(log="\ud800" * 9000, failed_tests=("\udc00",)))
    verdict = await graded(sandboxes, task, Breaks(lambda turn: said, judges))
    for text in (verdict.reason, verdict.evidence.log, *verdict.evidence.failed_tests):
        assert len(text.encode()) <= 4000
