"""The harness's cost per turn: 500 concurrent conversations on one core, with a scripted model that costs nothing.

The loop, tools, budgets and session files are the real ones; only the model is a script.

1. All conversations run to fifty turns as fast as they can: turns per second of CPU time, and memory.
2. Each answer then takes about a second, like a model's: the latency that the harness adds to a turn of a long
   conversation, from one answer to the next request, in wall-clock time, and for busy machines in CPU time (which
   includes other conversations' turns in between).
3. Fewer conversations run as in training, where every token is recorded.

The peer is mini-swe-agent (`_mini_swe.toml`) with its own scripted model. It says the same and receives our tools'
answers, from an environment that costs nothing.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import subprocess
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from _harness_work import TASK, compact_turn, repository, turn
from _peer_python import peers_python
from _report import finish

from etude.harness import (
    Budgets,
    Conversation,
    Outcome,
    OverlayWorkspace,
    RecordingPolicy,
    ScriptedPolicy,
    Toolbox,
    ToolLimits,
    load_profile,
    run_agent,
)
from etude.harness.loop import Observer
from etude.harness.sessions import SessionRecord
from etude.harness.sessions.log import SessionLog
from etude.text import CompactFormat, Tokenizer
from etude.trace import Trace, TraceBuilder, TraceWriter
from etude.trace.conversation.messages import ToolCall, Turn

CONVERSATIONS, TURNS, PACED = 500, 50, 10
RECORDED = 64
ANSWER_SECONDS = 1.0
"""Average seconds of an answer in the second part."""
PROFILE = load_profile("full")
SETTINGS = Path(__file__).with_name("_mini_swe.toml")


class Script:
    """Policy that answers at once for `TURNS` turns, waits until all conversations are there, then answers at a model's
    pace."""

    def __init__(self, number: int, clock: Clock) -> None:
        self.name, self._number, self._clock = "script", number, clock
        self._turns = 0
        self._waits = random.Random(number)

    async def act(self, conversation: Conversation, *, max_tokens: int) -> Turn:
        self._clock.asked(self._number, self._turns)
        if self._turns < TURNS:
            await asyncio.sleep(0)
        else:
            if self._turns == TURNS:
                await self._clock.all_there()
            await asyncio.sleep(self._waits.uniform(0, 2 * ANSWER_SECONDS))
        text, calls = turn(self._turns)
        self._turns += 1
        made = tuple(
            ToolCall(f"{self._turns}.{place}", name, arguments, json.dumps(arguments))
            for place, (name, arguments) in enumerate(calls)
        )
        self._clock.answered(self._number)
        if self._turns > TURNS + PACED:
            return Turn("done", sampled_tokens=1)
        return Turn(text, calls=made, sampled_tokens=40, call_tokens=30, message_tokens=10)

    def tokens(self, conversation: Conversation) -> int:
        raise AssertionError("no summary was asked for")

    def count(self, text: str) -> int:
        return len(text) // 4


class Clock:
    """Measures both parts: CPU, time and memory until all conversations reach `TURNS`, then each turn's latency."""

    def __init__(self) -> None:
        self.process = psutil.Process()
        self.before = self._memory()
        self.begun = (time.process_time(), time.perf_counter())
        self.spent = (0.0, 0.0)
        self.mib = 0.0
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self._there = 0
        self._go_on = asyncio.Event()
        self._since: dict[int, tuple[float, float]] = {}

    def _memory(self) -> float:
        gc.collect()
        return float(self.process.memory_info().rss) / 2**20

    async def all_there(self) -> None:
        self._there += 1
        if self._there == CONVERSATIONS:
            self.spent = (time.process_time() - self.begun[0], time.perf_counter() - self.begun[1])
            self.mib = (self._memory() - self.before) / CONVERSATIONS
            self._go_on.set()
        await self._go_on.wait()

    def answered(self, number: int) -> None:
        self._since[number] = (time.perf_counter(), time.process_time())

    def asked(self, number: int, turns: int) -> None:
        if turns > TURNS:
            self.wall.append(time.perf_counter() - self._since[number][0])
            self.cpu.append(time.process_time() - self._since[number][1])


async def play(place: Path, start: dict[str, bytes]) -> tuple[Clock, list[Outcome]]:
    clock = Clock()

    async def one(number: int) -> Outcome:
        workspace = OverlayWorkspace(start)
        toolbox = Toolbox(PROFILE.schemas(), workspace, ToolLimits(), PROFILE)
        record = SessionRecord.begin(place / str(number), profile=PROFILE.name)
        conversation = PROFILE.open(TASK, str(number))
        record.opened(conversation)
        log = SessionLog(record, workspace, toolbox, Observer())
        budgets = Budgets(turns=TURNS + PACED + 1, tool_calls=1000)
        outcome = await run_agent(conversation, Script(number, clock), toolbox, budgets, PROFILE, observer=log)
        record.stopped(outcome.stop.value, outcome.error)
        record.close()
        return outcome

    outcomes = await asyncio.gather(*(one(number) for number in range(CONVERSATIONS)))
    return clock, outcomes


def ours(place: Path) -> tuple[dict[str, Any], list[str]]:
    start = repository()
    clock, outcomes = asyncio.run(play(place, start))
    for outcome in outcomes:
        assert outcome.stop == "replied", outcome
        assert all(event.ok for event in outcome.tools)
    turns = CONVERSATIONS * TURNS
    written = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    result = {
        "turns_per_second_core": turns / clock.spent[0],
        "turns_per_second_wall": turns / clock.spent[1],
        "p50_ms": 1000 * float(np.percentile(clock.wall, 50)),
        "p99_ms": 1000 * float(np.percentile(clock.wall, 99)),
        "p99_cpu_ms": 1000 * float(np.percentile(clock.cpu, 99)),
        "conversations": CONVERSATIONS,
        "mib_per_conversation": clock.mib,
        "kib_on_disk_per_turn": written / 1024 / (CONVERSATIONS * (TURNS + PACED + 1)),
    }
    return result, [event.output for event in outcomes[0].tools]


def mini_swe(folder: Path, outputs: list[str]) -> dict[str, float]:
    """Turns per second of CPU time of mini-swe-agent, by when it writes its trajectory (each step, or at the end)."""
    settings = tomllib.loads(SETTINGS.read_text(encoding="utf-8"))
    answers = iter(outputs)
    turns = [
        {
            "text": text,
            "calls": [
                {"command": f"{name} {json.dumps(arguments)}", "answer": next(answers)} for name, arguments in calls
            ],
        }
        for text, calls in map(turn, range(TURNS + PACED))
    ]
    work = {"task": TASK, "turns": turns, "settings": settings, "folder": str(folder)}
    command = [peers_python(settings["requirement"]), SETTINGS.with_suffix(".py")]
    done = subprocess.run(command, input=json.dumps(work), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


async def recorded(start: dict[str, bytes], place: Path) -> float:
    """Turns per second of CPU time with token-exact traces, which are written when the conversations end."""
    profile = load_profile("compact")
    texts = [*profile.texts(), *(data.decode() for data in start.values())]
    form = CompactFormat(Tokenizer.train(texts, 1024))
    steps = [*map(compact_turn, range(TURNS)), "done"]
    budgets = Budgets(turns=TURNS + 1, tool_calls=1000, tokens=1_000_000)
    writer = TraceWriter(place)

    async def one(number: int) -> Trace:
        recorder = TraceBuilder()
        script = ScriptedPolicy(steps, profile)
        policy = RecordingPolicy(script, form, profile.schemas(), 1 << 20, recorder)
        toolbox = Toolbox(profile.schemas(), OverlayWorkspace(start), ToolLimits(), profile)
        outcome = await run_agent(profile.open(TASK, str(number)), policy, toolbox, budgets, profile)
        assert outcome.stop == "replied", outcome
        trace = Trace(str(number), TASK, "train", "bench", number, policy.name, 0, segments=recorder.segments())
        trace.tools, trace.usage, trace.stop = outcome.tools, outcome.usage, outcome.stop
        return trace

    begun = time.process_time()
    for batch in range(RECORDED // 16):
        writer.write(await asyncio.gather(*(one(batch * 16 + number) for number in range(16))))
    return RECORDED * TURNS / (time.process_time() - begun)


def main() -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    runs = Path(__file__).resolve().parent.parent / "runs"
    runs.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=runs, prefix="bench-harness-") as folder:
        result, outputs = ours(Path(folder) / "ours")
        result["recorded_turns_per_second_core"] = asyncio.run(recorded(repository(), Path(folder) / "traces"))
        peer = mini_swe(Path(folder), outputs)
    result["mini_swe_turns_per_second"] = peer["end"]
    result["mini_swe_written_each_turn"] = peer["step"]
    result["ratio"] = result["turns_per_second_core"] / peer["end"]
    result["ratio_written_each_turn"] = result["turns_per_second_core"] / peer["step"]
    os.sched_setaffinity(0, allowed)
    finish("harness", result)


if __name__ == "__main__":
    main()
