"""A rollout is on the disk turn by turn, and off it when its trace is whole."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.harness.parts import ScriptedEngine, compact_format, playing, written
from tests.rollout.test_rollout import job_of, scripted

from etude.harness import Conversation, TokenPolicy, TokenSampling, load_profile
from etude.rollout import run_rollout, subject_of
from etude.trace import StopCause, TraceError, read_live

pytestmark = pytest.mark.anyio


async def test_what_was_done_so_far_can_be_read_while_it_goes_on(train, setup, tmp_path: Path):
    seen = []

    def look(conversation: Conversation) -> str:
        (path,) = (tmp_path / "live").iterdir()
        seen.append(read_live(path))
        return "> finish"

    setup.live = tmp_path / "live"
    task = train[0]
    subject = await subject_of(task, setup.environments)
    result = await run_rollout(job_of(task), subject, scripted("> list", "> read check.py", look), setup)
    (live,) = seen
    assert (live.id, live.task, live.stop) == (result.trace.id, task.id, StopCause.ERROR)
    assert live.usage.turns == 2
    assert live.messages == result.trace.messages[: len(live.messages)]
    assert [tool.name for tool in live.tools] == ["list", "read"]
    assert list((tmp_path / "live").iterdir()) == [], "the trace is whole"


async def test_one_that_never_ended_keeps_the_ids_of_its_turns(train, setup, tmp_path: Path):
    engine = ScriptedEngine(playing([written("list"), written("read check.py"), written("list")]))
    generate, hanging = engine.generate, asyncio.Event()

    async def hangs_at_last(request):
        if len(engine.generations) == 2:
            hanging.set()
            await asyncio.sleep(3600)
        return await generate(request)

    engine.generate = hangs_at_last

    def policy(job, task, recorder):
        schemas = load_profile("compact").schemas()
        return TokenPolicy(engine, compact_format(), schemas, TokenSampling(4096), recorder, conversation=job.id)

    setup.live = tmp_path / "live"
    subject = await subject_of(train[0], setup.environments)
    running = asyncio.create_task(run_rollout(job_of(train[0]), subject, policy, setup))
    async with asyncio.timeout(60):
        await hanging.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    (path,) = (tmp_path / "live").iterdir()
    trace = read_live(path)
    assert trace.usage.turns == 2
    assert trace.segments[0].sampled.sum() == sum(len(g.tokens) for g in engine.generations)


def test_ids_alone_are_no_trace(tmp_path: Path):
    from etude.trace import StepsFile

    StepsFile(tmp_path / "x.steps").close()
    with pytest.raises(TraceError, match="does not say which rollout"):
        read_live(tmp_path / "x.steps")
