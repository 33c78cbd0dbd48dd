"""What a worker sees when its engine dies and comes back."""

import asyncio
import pickle

import numpy as np
import pytest
from tests.engine.tiny import Versions

from etude.cluster import DeadlineExceeded, open_cluster
from etude.engine.protocol import ContextExceeded, EngineError, GenerateRequest, Sampling, StreamsLost, UpdateRefused
from etude.engine.remote import RemoteEngine
from etude.engine.streams import Streams
from etude.recipe.compute import ClusterRecipe


def ask(name, tokens=60, conversation=""):
    return GenerateRequest(name, np.array([1, 2, 3], np.int32), Sampling(tokens, ()), conversation)


def with_engine(tmp_path, body, *, lockstep=False, deadline=20.0):
    versions = Versions(tmp_path)
    recipe = {"slots": 2, "context": 96, "cache_slots": 4}
    arguments = (str(versions.folder), recipe, "float32", 1, str(versions.location), 0, lockstep)

    async def whole():
        cluster = await open_cluster("inline", run_folder=tmp_path, cpus=1)
        try:
            remote = await cluster.start("engine", "etude.engine.builtin.service:EngineService", *arguments)
            limits = ClusterRecipe(generate_seconds=deadline)
            await body(RemoteEngine(remote, limits, lockstep=lockstep), remote, versions)
        finally:
            await cluster.close()

    asyncio.run(asyncio.wait_for(whole(), 60))


class Hanging:
    """A handle to an engine that never answers. It notes the deadline of each call."""

    name = "engine"

    def __init__(self):
        self.deadlines = {}

    async def call(self, method, *arguments, deadline):
        self.deadlines[method] = deadline
        raise DeadlineExceeded(f"engine.{method} did not answer within {deadline:g} s")


def test_each_kind_of_call_has_its_own_deadline():
    hanging = Hanging()
    engine = RemoteEngine(hanging, ClusterRecipe(call_seconds=1, generate_seconds=60, weights_seconds=3600))

    async def ask_everything():
        for call in (engine.generate(ask("r")), engine.update(1), engine.info(), engine.stats(), engine.open(["a"])):
            with pytest.raises(EngineError, match="did not answer"):
                await call

    asyncio.run(ask_everything())
    expected = {"generate": 60, "update": 3600, "info": 1, "stats": 1, "open": 1}
    assert hanging.deadlines == pytest.approx(expected, abs=0.1)


def test_requests_are_repeated_to_the_restarted_engine(tmp_path):
    async def body(engine, remote, versions):
        await engine.update(versions.publish())
        tasks = [asyncio.create_task(engine.generate(ask(f"r{i}"))) for i in range(20)]
        await engine.info()  # Asked last, so they are under way, and more than are soon done.
        await remote.kill()
        await engine.abort("r0")
        await engine.close("nothing")
        await asyncio.sleep(0.1)
        assert not tasks[-1].done()
        await remote.restart(deadline=20)
        answers = await asyncio.gather(*tasks)
        assert [a.tokens.size for a in answers] == [60] * 20
        assert (await engine.info()).version == 1, "it starts on the latest version"

    with_engine(tmp_path, body)


def test_the_wait_for_a_restart_has_a_deadline_and_names_the_engine(tmp_path):
    async def body(engine, remote, versions):
        await remote.kill()
        with pytest.raises(EngineError, match=r"waited 0\.3 s for engine to be restarted and to answer generate"):
            await engine.generate(ask("r"))

    with_engine(tmp_path, body, deadline=0.3)


def test_in_lockstep_a_loss_is_raised(tmp_path):
    async def body(engine, remote, versions):
        await engine.open(["a", "b"])
        task = asyncio.create_task(engine.generate(ask("r", conversation="a")))
        await asyncio.sleep(0.02)
        await remote.kill()
        with pytest.raises(EngineError, match="replay the step"):
            await task

    with_engine(tmp_path, body, lockstep=True)


def test_the_engines_own_errors_arrive_as_themselves(tmp_path):
    async def body(engine, remote, versions):
        with pytest.raises(ContextExceeded):
            await engine.generate(GenerateRequest("r", np.zeros(200, np.int32), Sampling(1, ())))
        with pytest.raises(UpdateRefused):
            await engine.update(99)
        again = pickle.loads(pickle.dumps(engine))
        assert again.name == "engine"
        assert (await again.generate(ask("s"))).tokens.size == 60

    with_engine(tmp_path, body)


def test_streams_of_an_engine_that_dies_end_and_may_begin_again(tmp_path):
    async def body(engine, remote, versions):
        streams = Streams(engine, wait=0.5)

        async def attempt(name):
            return [item async for item in streams.stream(ask(name, 93))]

        tasks = [asyncio.create_task(attempt(f"r{i}")) for i in range(12)]
        while (await engine.stats()).running + (await engine.stats()).waiting < 12:
            pass
        await remote.kill()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(ended, StreamsLost)
        await remote.restart(deadline=20)
        assert (await attempt("r0"))[-1].tokens.size == 93

    with_engine(tmp_path, body)


def test_a_restart_between_two_calls_is_noticed(tmp_path):
    async def body(engine, remote, versions):
        streams = Streams(engine)
        waiting = streams.stream(ask("waits", 90))
        await anext(waiting)
        pulling, streams._pulling = streams._pulling, None
        pulling.cancel()
        await remote.kill()
        await remote.restart(deadline=20)
        # The engine is there, but knows nothing of the consumer: a new request must not revive it.
        assert [item async for item in streams.stream(ask("new", 5))][-1].tokens.size == 5
        with pytest.raises(StreamsLost):
            await anext(waiting)

    with_engine(tmp_path, body)


def test_streams_of_an_engine_with_a_fault_end():
    class Faulty:
        async def begin(self, request, consumer, *, first): ...

        async def abort(self, request_id): ...

        async def pull(self, consumer, after, *, wait, every):
            raise TypeError("a fault")

    async def one():
        async for _ in Streams(Faulty()).stream(ask("one")):
            pass

    with pytest.raises(EngineError, match=r"the engine failed: TypeError\('a fault'\)"):
        asyncio.run(asyncio.wait_for(one(), 10))
