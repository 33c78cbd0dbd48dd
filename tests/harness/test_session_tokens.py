"""A session whose policy owns ids becomes a trace without another look at the text, whatever killed it."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.contract.sandbox.support import in_loop
from tests.harness.parts import ScriptedEngine, compact_format, playing, repository, written

from etude.harness import ChatSession, TokenPolicy, TokenSampling, load_profile
from etude.harness.sessions import SessionError, SessionRecord, as_trace, load_session
from etude.harness.sessions.record import LOG, STEPS
from etude.recipe.acting import HarnessRecipe, SandboxRecipe
from etude.trace import SegmentKind, TraceBuilder, from_line, to_line

BOX = SandboxRecipe.model_validate({})
HARNESS = HarnessRecipe.model_validate({"summary_trigger": 0, "max_turns": 12, "max_tokens": 5000})
TURNS = [
    written("list"),
    written("read calc.py", text="so"),
    written("edit calc.py 3 return max(a, b)"),
    written(text="ok"),
]


def policy(engine: ScriptedEngine) -> TokenPolicy:
    schemas = load_profile("compact").schemas()
    return TokenPolicy(engine, compact_format(), schemas, TokenSampling(4096), TraceBuilder(), conversation="c")


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, ScriptedEngine]:
    """Repository, session and the engine that sampled it."""
    folder = repository(tmp_path_factory.mktemp("repository"))
    place = tmp_path_factory.mktemp("sessions") / "one"
    engine = ScriptedEngine(playing([*TURNS, *TURNS]))

    async def play() -> None:
        record = SessionRecord.begin(place, model="tiny", folder=str(folder), consent=True)
        async with ChatSession(folder, policy(engine), HARNESS, BOX, record=record) as session:
            await session.run("make check pass")
            await session.run("and again")

    asyncio.run(play())
    return folder, place, engine


def test_the_trace_holds_what_the_engine_was_given_and_sampled(played: tuple[Path, Path, ScriptedEngine]) -> None:
    _, place, engine = played
    trace = as_trace(load_session(place))
    (segment,) = trace.segments
    for request, generation in zip(engine.requests, engine.generations, strict=True):
        at = len(request.prompt)
        assert segment.tokens[:at].tolist() == request.prompt.tolist()
        here = slice(at, at + len(generation.tokens))
        assert segment.tokens[here].tolist() == generation.tokens.tolist()
        assert segment.logprobs[here].tolist() == generation.logprobs.tolist()
        assert segment.versions[here].tolist() == generation.versions.tolist()
        assert segment.sampled[here].all()
    assert segment.experts is not None
    assert segment.sampled.sum() == trace.usage.sampled_tokens == sum(len(g.tokens) for g in engine.generations)
    assert (trace.task, trace.policy, trace.usage.turns) == ("make check pass", "tiny", len(TURNS) * 2)
    assert "+    return max(a, b)" in trace.diff
    back = from_line(to_line(trace))
    assert back.segments[0].tokens.tolist() == segment.tokens.tolist()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(log=st.floats(0, 1), ids=st.floats(0.97, 1))
def test_cut_off_anywhere_it_holds_the_ids_of_whole_turns(
    played: tuple[Path, Path, ScriptedEngine], tmp_path_factory: pytest.TempPathFactory, log: float, ids: float
) -> None:
    _, place, engine = played
    cut = tmp_path_factory.mktemp("cut") / "session"
    shutil.copytree(place, cut)
    whole = (cut / LOG).read_bytes()
    (cut / LOG).write_bytes(whole[: int(log * len(whole))])
    try:
        saved = load_session(cut)
    except SessionError as error:
        assert "empty" in str(error)  # noqa: PT017 - either way is right, by where it was cut
        return
    # Ids are written before the line of their turn: what the log does not know of may be there, or a part of it.
    steps = (cut / STEPS).read_bytes()
    (cut / STEPS).write_bytes(steps[: max(saved.steps, int(ids * len(steps)))])
    trace = as_trace(saved)
    sampled = sum(int(segment.sampled.sum()) for segment in trace.segments)
    assert sampled == sum(len(generation.tokens) for generation in engine.generations[: saved.turns])


@in_loop
async def test_one_that_goes_on_repeats_what_was_said_as_given(
    played: tuple[Path, Path, ScriptedEngine], tmp_path: Path
) -> None:
    folder, place, first = played
    shutil.copytree(place, tmp_path / "session")
    engine = ScriptedEngine(playing([written(text="once more")]))
    saved = load_session(tmp_path / "session")
    async with ChatSession(folder, policy(engine), HARNESS, BOX, saved=saved) as session:
        await session.run("thanks")
    one, two = as_trace(load_session(tmp_path / "session")).segments
    assert (two.kind, two.parent) == (SegmentKind.REWRITTEN, one.id)
    assert two.tokens[~two.sampled].tolist() == engine.requests[0].prompt.tolist()
    assert two.tokens[two.sampled].tolist() == engine.generations[0].tokens.tolist()
    assert one.sampled.sum() == sum(len(generation.tokens) for generation in first.generations)


ENDLESS = """
import asyncio, sys
from pathlib import Path
from tests.harness.test_session_tokens import BOX, HARNESS, ScriptedEngine, playing, policy, written
from etude.harness import ChatSession
from etude.harness.sessions import SessionRecord, load_session
folder, place = Path(sys.argv[1]), Path(sys.argv[2])
turns = [written("edit calc.py 3 return max(a, b)"), written("list"), written("edit calc.py 3 return min(a, b)")]

async def main():
    goes_on = {"saved": load_session(place)} if place.exists() else {"record": SessionRecord.begin(place)}
    async with ChatSession(folder, policy(ScriptedEngine(playing(turns * 4))), HARNESS, BOX, **goes_on) as session:
        if session.interrupted:
            await session.resume()
        while True:
            await session.run("again")

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, pytest.param(range(2, 14), marks=pytest.mark.soak)])
def test_killed_at_any_moment_again_and_again_it_loads(tmp_path: Path, seed: int | range) -> None:
    for number in [seed] if isinstance(seed, int) else seed:
        _kill_twice(tmp_path / str(number), random.Random(number))


def _kill_twice(where: Path, rng: random.Random) -> None:
    folder, place = repository(where / "repository"), where / "session"
    before = 0
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", ENDLESS, str(folder), str(place)],
            cwd=Path(__file__).parents[2],
            stderr=subprocess.PIPE,
        )
        wanted, until = before + rng.randrange(400, 9000), time.monotonic() + 120
        while not (place / LOG).exists() or (place / LOG).stat().st_size < wanted:
            assert time.monotonic() < until
            assert process.poll() is None, process.stderr.read().decode() if process.stderr else ""
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        turns = (place / LOG).read_bytes().count(b'"kind":"turn"')
        saved = load_session(place)
        assert saved.turns in (turns, turns - 1), "at most the line that was being written is lost"
        sampled = sum(int(segment.sampled.sum()) for segment in as_trace(saved).segments)
        assert sampled == saved.total().sampled_tokens
        before = saved.size
