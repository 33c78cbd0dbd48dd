"""Stand-ins behind the inline cluster: they do no arithmetic, write down what they were asked, and die when told to."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from etude.engine.protocol import EngineStats
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
            return {"step": step}
        assert step == done, (step, done)
        row = {"groups": [g.index for g in groups], "members": [sum(m is not None for m in g.members) for g in groups]}
        row["staleness"] = [step - g.admitted_version for g in groups]
        with self._file.open("a") as out:
            out.write(json.dumps(row) + "\n")
        return {"step": step}


class SlowTrainer(Trainer):
    async def train(self, step: int, groups: list[Any]) -> dict[str, Any]:  # type: ignore[override]
        await asyncio.sleep(0.15)
        return super().train(step, groups)


class HangingTrainer(Trainer):
    async def status(self) -> dict[str, Any]:  # type: ignore[override]
        await asyncio.sleep(60)
        return super().status()


class Engine:
    def __init__(self) -> None:
        self._version = 0

    async def open(self, conversations: list[str]) -> None:
        pass

    async def update(self, version: int) -> None:
        self._version = version

    async def stats(self) -> EngineStats:
        return EngineStats(version=self._version)


class Worker:
    """Takes a moment for each rollout; one in ten fails by our fault."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    async def rollout(self, job: RolloutJob) -> RolloutResult:
        await asyncio.sleep(self._random.uniform(0, 0.02))
        ours = self._random.random() < 0.1
        tokens = np.arange(4, dtype=np.int32)
        versions, sampled = np.zeros(4, np.int32), np.arange(4) > 1
        segment = Segment(0, None, SegmentKind.START, tokens, sampled, np.zeros(4, np.float32), versions, None)
        stop = StopCause.ERROR if ours else StopCause.FINISHED
        trace = Trace(job.id, job.task, "train", job.group, job.member, "policy", job.seed, [segment], stop=stop)
        verdict = Verdict(Judgement.ERROR, "lost") if ours else Verdict(Judgement.PASS, "")
        return RolloutResult(job, trace, verdict)
