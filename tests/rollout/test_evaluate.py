"""The evaluator over rollouts whose outcome is decided by the test: what it counts, writes, and does again."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import numpy as np
import pytest

from etude.journal import Journal, read_journal
from etude.recipe.acting import EvaluationRecipe
from etude.rollout import RolloutResult, evaluate, read_samples
from etude.tasks.task import Split, SplitViolation
from etude.tasks.verdict import Judgement, Verdict
from etude.trace import StopCause, Trace, TraceBuilder, TraceUsage
from etude.trace.file import read_traces
from etude.trace.trace import SegmentKind

SUMMARISED = ({}, {"summaries": 1, "context_before": 200, "context_after": 50, "rereads": 2, "cut_summaries": 1})
RECIPE = EvaluationRecipe.model_validate({"samples": 4, "concurrency": 3})


class Rollouts:
    """Member 0 and greedy pass, the others fail; what `lose` names is lost that often before. Where `version` is given,
    each rollout is sampled by it, and the engine takes the next one after every rollout."""

    def __init__(self, lose=(), version=None):
        self.jobs = []
        self.left = dict(lose)
        self.version = version

    async def __call__(self, job) -> RolloutResult:
        self.jobs.append(job)
        await asyncio.sleep(0)
        key = job.id.rpartition(".")[0]
        lost = self.left.get(key, 0) > 0
        self.left[key] = self.left.get(key, 0) - 1
        judgement = Judgement.ERROR if lost else Judgement.PASS if job.member == 0 else Judgement.FAIL
        recorder = TraceBuilder()
        recorder.start_segment(SegmentKind.START, None, [1, 2])
        if self.version is not None:
            recorder.sampled(np.array([3], np.int32), np.zeros(1, np.float32), np.array([self.version], np.int32))
            self.version += 1
        trace = Trace(
            job.id, job.task, job.split.value, job.group, job.member, "model", job.seed,
            segments=recorder.segments(),
            usage=TraceUsage(turns=3, tool_calls=4, invalid_calls=1, sampled_tokens=20, **SUMMARISED[job.member == 3]),
            stop=StopCause.TURNS if job.member == 2 else StopCause.FINISHED,
        )  # fmt: skip
        first = Verdict(Judgement.PASS, "") if job.member < 2 else None
        return RolloutResult(job, trace, Verdict(judgement, ""), first)


class Dies(Rollouts):
    async def __call__(self, job):
        if len(self.jobs) == 7:
            raise ConnectionError("killed")
        return await super().__call__(job)


def run(tasks, rollouts, folder, *, name="before", split=Split.DEV, recipe=RECIPE, **options):
    journal = Journal(folder / "journal", "driver")
    try:
        place = folder / "eval" / name
        of = {"name": name, "split": split, "seed": 1, "journal": journal, **options}
        return asyncio.run(evaluate(tasks, rollouts, recipe, place, **of))
    finally:
        journal.close()


def test_scores_and_files(dev, tmp_path):
    rollouts = Rollouts()
    seen = []
    evaluation = run(dev, rollouts, tmp_path, progress=lambda done, total: seen.append((done, total)))
    summary = evaluation.summary
    assert (summary.tasks, summary.samples, summary.errors, summary.k) == (3, 15, 0, 4)
    assert summary.pass1.mean == pytest.approx(0.25)
    assert summary.passk.mean == pytest.approx(1.0)
    assert summary.greedy.mean == pytest.approx(1.0)
    assert summary.first_edit.mean == pytest.approx(0.5)
    assert summary.truncated == pytest.approx(3 / 15)
    assert summary.valid_calls == pytest.approx(0.75)
    assert summary.summarised == pytest.approx(3 / 15)
    assert (summary.compression, summary.rereads, summary.empty_summaries, summary.cut_summaries) == (4.0, 2.0, 0, 3)
    assert sum(score.tasks for score in summary.by_kind.values()) == 3
    assert {cell: score.tasks for cell, score in summary.by_cell.items()} == dict(Counter(task.cell for task in dev))
    for score in summary.by_cell.values():
        assert (score.pass1.mean, score.passk.mean, score.greedy.mean) == (0.25, 1.0, 1.0)
    assert seen[0] == (0, 15)
    assert seen[-1] == (15, 15)
    folder = tmp_path / "eval" / "before"
    assert json.loads((folder / "summary.json").read_text())["pass1"]["mean"] == pytest.approx(0.25)
    samples = read_samples(folder / "results.jsonl")
    assert sorted(sample.trace for sample in samples) == sorted(trace.id for trace in read_traces(folder / "traces"))
    temperatures = {(job.member, job.temperature) for job in rollouts.jobs}
    assert temperatures == {(0, 1.0), (1, 1.0), (2, 1.0), (3, 1.0), (0, 0.0)}
    assert len({job.seed for job in rollouts.jobs}) == 15


def test_finished_samples_are_not_run_again(dev, tmp_path):
    first = Dies()
    with pytest.raises(ConnectionError):
        run(dev, first, tmp_path)
    results = tmp_path / "eval" / "before" / "results.jsonl"
    with results.open("a") as file:
        file.write('{"id": "torn')
    kept = results.read_text().count("}\n")
    assert kept >= 4
    second = Rollouts()
    evaluation = run(dev, second, tmp_path)
    assert len(second.jobs) == 15 - kept
    third = Rollouts()
    assert run(dev, third, tmp_path).summary == evaluation.summary
    assert not third.jobs


def test_infrastructure_is_tried_again_and_then_counted_but_never_scored(dev, tmp_path):
    once, always = f"before:{dev[0].id}/000", f"before:{dev[1].id}/001"
    rollouts = Rollouts({once: 1, always: 9})
    summary = run(dev, rollouts, tmp_path).summary
    assert summary.errors == 1
    assert [job.attempt for job in rollouts.jobs if job.id.startswith(always)] == [0, 1, 2]
    # The second task has three valid samples, of which one passed.
    assert summary.pass1.mean == pytest.approx((0.25 + 1 / 3 + 0.25) / 3)
    assert summary.passk.tasks == 2
    again = Rollouts()
    assert run(dev, again, tmp_path).summary.errors == 0
    assert len(again.jobs) == 1


def test_the_versions_that_sampled_it_are_on_record_across_a_restart(dev, tmp_path):
    assert run(dev, Rollouts(), tmp_path, name="of a chat model").summary.versions is None

    with pytest.raises(ConnectionError):
        run(dev, Dies(version=4), tmp_path)
    rest = Rollouts(version=30)
    assert run(dev, rest, tmp_path).summary.versions == (4, 29 + len(rest.jobs))
    assert json.loads((tmp_path / "eval" / "before" / "summary.json").read_text())["versions"][0] == 4
    (*_, last) = read_journal(tmp_path / "journal", kind="evaluated")
    assert last.fields["versions"] == [4, 29 + len(rest.jobs)]


def test_a_lost_sample_has_no_say_in_the_versions(dev, tmp_path):
    first = f"before:{dev[0].id}/000"
    recipe = RECIPE.model_copy(update={"concurrency": 1})
    rollouts = Rollouts({first: 1}, version=0)
    assert run(dev, rollouts, tmp_path, recipe=recipe).summary.versions == (1, 15)


def test_touches_of_a_split_are_counted_in_the_journal(dev, tmp_path):
    assert run(dev, Rollouts(), tmp_path, name="before").summary.touch == 1
    assert run(dev, Rollouts(), tmp_path, name="after").summary.touch == 2
    assert run(dev, Rollouts(), tmp_path, name="before").summary.touch == 1


def test_the_number_of_edits_can_be_bounded(dev, tmp_path):
    for most in (None, 1):
        rollouts = Rollouts()
        run(dev, rollouts, tmp_path, name=f"at most {most}", max_edits=most)
        assert {job.max_edits for job in rollouts.jobs} == {most}


def test_other_splits_are_refused(train, tmp_path):
    with pytest.raises(SplitViolation):
        run(train, Rollouts(), tmp_path)
