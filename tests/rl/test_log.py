"""The log survives a kill between any two bytes, and gives back what training needs."""

from __future__ import annotations

import json

import numpy as np
import pytest

from etude.rl.log import RlLog, Sampled
from etude.rl.reconciler import Admitted, Finished, Trained, TrainStarted
from etude.rollout import RolloutJob, RolloutResult
from etude.tasks import Judgement, Split, Verdict
from etude.trace import Segment, SegmentKind, StopCause, Trace


def sampled(group: int, number: int) -> Sampled:
    job = RolloutJob("task", Split.TRAIN, f"g{group:06d}", number)
    n = 5
    segment = Segment(
        0,
        None,
        SegmentKind.START,
        np.arange(n, dtype=np.int32) + group,
        np.arange(n) > 1,
        np.linspace(-1, 0, n, dtype=np.float32),
        np.full(n, 3, np.int32),
        np.full((n, 1, 2), 1, np.uint16),
    )
    trace = Trace(job.id, "task", "train", job.group, number, "policy", 0, [segment], stop=StopCause.FINISHED)
    trace.messages = [{"role": "user", "content": "hello"}]
    return Sampled(Finished(group, number, 0), RolloutResult(job, trace, Verdict(Judgement.PASS, "all cases")))


def test_what_was_written_comes_back_without_its_texts(tmp_path) -> None:
    log = RlLog(tmp_path)
    log.append(Admitted(0, 0))
    written = [sampled(0, number) for number in range(3)]
    log.write(written[:2])
    log.write(written[2:])
    log.append(TrainStarted(0, (0,)))
    log.append(Trained(0))
    again = RlLog(tmp_path)
    assert again.events() == [Admitted(0, 0), *[s.event for s in written], TrainStarted(0, (0,)), Trained(0)]
    found = again.restore({written[1].result.trace.id, "g000009/000.0"})
    assert list(found) == [written[1].result.trace.id]
    trace, verdict = found[written[1].result.trace.id]
    assert verdict.passed
    assert trace.messages == []
    one, other = trace.segments[0], written[1].result.trace.segments[0]
    for name in ("tokens", "sampled", "logprobs", "versions", "experts"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name


@pytest.mark.parametrize("file", ["events.jsonl", "rollouts.jsonl"])
def test_a_kill_at_any_byte_costs_at_most_the_line_it_tore(file, tmp_path) -> None:
    whole = tmp_path / "whole"
    log = RlLog(whole)
    log.append(Admitted(0, 0))
    log.write([sampled(0, 0), sampled(0, 1)])
    data = (whole / file).read_bytes()
    ends = [place for place, byte in enumerate(data) if byte == ord("\n")]
    for cut in {0, 1, *ends, *(end + 1 for end in ends), (ends[0] + ends[1]) // 2, len(data) - 2}:
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / file).write_bytes(data[:cut])
        again = RlLog(folder)
        again.append(Trained(0)) if file == "events.jsonl" else again.write([sampled(1, 0)])
        lines = (folder / file).read_bytes().split(b"\n")
        assert lines.pop() == b""
        assert len([json.loads(line) for line in lines]) == data[:cut].count(b"\n") + 1


def test_an_event_always_has_its_trace(tmp_path) -> None:
    """The order on disk: trace, record, event. A kill after the first two leaves a rollout that is sampled again."""
    log = RlLog(tmp_path)
    log.append(Admitted(0, 0))
    log.write([sampled(0, 0)])
    events = (tmp_path / "events.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "events.jsonl").write_text(events[0])
    again = RlLog(tmp_path)
    assert again.events() == [Admitted(0, 0)]
    again.write([sampled(0, 0)])
    assert len(again.restore({sampled(0, 0).result.trace.id})) == 1
