"""Stand-ins behind the inline cluster: they do no arithmetic, write down what they were asked, and die when told to."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from etude.engine.protocol import EngineStats
from etude.journal import append_rows
from etude.rl.batch import TrainingGroup
from etude.rollout import RolloutJob, RolloutResult
from etude.tasks import Judgement, Verdict
from etude.trace import Segment, SegmentKind, StopCause, Trace


class Trainer:
    """Keeps its step in a file, as the real one does in its checkpoint."""

    def __init__(self, folder: str) -> None:
        self._file = Path(folder) / "trained.jsonl"

    def _steps(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._file.read_text().splitlines()] if self._file.exists() else []

    def status(self) -> dict[str, Any]:
        return {"step": len(self._steps()), "metrics": {}}

    def train(self, step: int, groups: list[Any]) -> dict[str, Any]:
        done = len(self._steps())
        if step == done - 1:
            return {}
        assert step == done, (step, done)
        row = {"groups": [g.index for g in groups], "members": [sum(m is not None for m in g.members) for g in groups]}
        row["staleness"] = [step - g.admitted_version for g in groups]
        self._write(row)
        return {}

    def _write(self, row: dict[str, Any]) -> None:
        with self._file.open("a") as out:
            out.write(json.dumps(row) + "\n")


class TurnTakingTrainer(Trainer):
    """Takes a step only while the engine rests."""

    def train(self, step: int, groups: list[Any]) -> dict[str, Any]:
        assert Engine.resting
        return super().train(step, groups)


class ForgetfulTrainer(Trainer):
    """Writes its steps to the file at every third step and at the last one: a death costs those in between. A step that
    it is sent again has to come with the same batch."""

    every = 3

    def __init__(self, folder: str, steps: int) -> None:
        super().__init__(folder)
        self._sent = Path(folder) / "sent.jsonl"
        self._last, self._new = steps, list[dict[str, Any]]()

    def _steps(self) -> list[dict[str, Any]]:
        return super()._steps() + self._new

    def train(self, step: int, groups: list[Any]) -> dict[str, Any]:
        if step == len(self._steps()):
            self._expect_same(step, [_content(group) for group in groups])
        return super().train(step, groups)

    def _write(self, row: dict[str, Any]) -> None:
        self._new.append(row)
        done = len(self._steps())
        if done % self.every == 0 or done == self._last:
            for new in self._new:
                super()._write(new)
            self._new = []

    def _expect_same(self, step: int, batch: list[Any]) -> None:
        sent = [json.loads(line) for line in self._sent.read_text().splitlines()] if self._sent.exists() else []
        if step < len(sent):
            assert batch == sent[step], f"step {step} was sent again with another batch"
        else:
            append_rows(self._sent, [batch])  # type: ignore[list-item]


def _content(group: TrainingGroup) -> list[Any]:
    """Everything that training uses of a group, as JSON."""
    members = [
        [m.trace.id, m.verdict.passed, *(array.tolist() for array in _arrays(m.trace))] if m else None
        for m in group.members
    ]
    return [group.index, group.admitted_version, members]


def _arrays(trace: Trace) -> list[Any]:
    return [part for s in trace.segments for part in (s.tokens, s.sampled, s.logprobs, s.versions)]


class SlowTrainer(Trainer):
    async def train(self, step: int, groups: list[Any]) -> dict[str, Any]:  # type: ignore[override]
        await asyncio.sleep(0.15)
        return super().train(step, groups)


class HangingTrainer(Trainer):
    async def status(self) -> dict[str, Any]:  # type: ignore[override]
        await asyncio.sleep(60)
        return super().status()


class Engine:
    updates: ClassVar[list[int]] = []
    """Every version that an engine of this process was told to take."""
    resting: ClassVar[bool] = False
    """Whether the engine of this process rests."""

    def __init__(self) -> None:
        self._version = 0
        Engine.resting = False

    async def rest(self) -> None:
        Engine.resting = True

    async def wake(self) -> None:
        assert self._version, "it wakes with a version that was trained meanwhile"
        Engine.resting = False

    async def open(self, conversations: list[str]) -> None:
        pass

    async def update(self, version: int) -> None:
        self._version = version
        Engine.updates.append(version)

    async def stats(self) -> EngineStats:
        return EngineStats(version=self._version)


class Worker:
    """Takes a moment for each rollout; one in ten fails by our fault. No two rollouts are alike."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    async def rollout(self, job: RolloutJob) -> RolloutResult:
        await asyncio.sleep(self._random.uniform(0, 0.02))
        ours = self._random.random() < 0.1
        tokens = np.arange(4, dtype=np.int32)
        versions, sampled = np.zeros(4, np.int32), np.arange(4) > 1
        logprobs = np.array([self._random.random() for _ in range(4)], np.float32)
        segment = Segment(0, None, SegmentKind.START, tokens, sampled, logprobs, versions, None)
        stop = StopCause.ERROR if ours else StopCause.FINISHED
        trace = Trace(job.id, job.task, "train", job.group, job.member, "policy", job.seed, [segment], stop=stop)
        verdict = Verdict(Judgement.ERROR, "lost") if ours else Verdict(Judgement.PASS, "")
        return RolloutResult(job, trace, verdict)
