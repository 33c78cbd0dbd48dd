"""The service: its thread, its futures, lockstep and the store of versions."""

import asyncio
import random
import subprocess
import sys

import numpy as np
import pytest
from tests.contract.engine import until_sampled
from tests.engine.tiny import Versions, tiny_model

from etude.engine.builtin.service import EngineService
from etude.engine.protocol import EngineError, GenerateRequest, Sampling, StopReason, StreamsLost, UpdateRefused
from etude.weights.torch_bridge import from_state_dict


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    return Versions(tmp_path_factory.mktemp("engine"))


def service(versions, *, dtype="float32", store=True, lockstep=False, **changes):
    recipe = {"slots": 4, "context": 96, "cache_slots": 6, **changes}
    return EngineService(
        versions.folder, recipe, dtype, 1, str(versions.location) if store else None, lockstep=lockstep
    )


def ask(name, prompt, tokens=8, conversation="", seed=0):
    return GenerateRequest(name, np.asarray(prompt, np.int32), Sampling(tokens, (5,), seed=seed), conversation)


async def episode(engine, schedule):
    """Seven conversations of up to four turns; `schedule` shuffles and delays whatever may vary."""
    names = [f"c{i}" for i in range(7)]
    await engine.open(schedule.sample(names, len(names)))
    answers = {}

    async def converse(name):
        index = int(name[1:])
        prompt = [*range(1, 22), index % 3]
        for turn in range(2 + index % 3):
            await asyncio.sleep(schedule.random() * 0.01)
            request = ask(f"{name}/{turn}", prompt, 4 + 3 * index, name, seed=index * 10 + turn)
            answers[request.id] = answer = await engine.generate(request)
            prompt = prompt + answer.tokens.tolist() + [turn, 7]
        await asyncio.sleep(schedule.random() * 0.01)
        await engine.close(name)

    await asyncio.gather(*(converse(name) for name in schedule.sample(names, len(names))))
    return {name: answers[name] for name in sorted(answers)}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_lockstep_is_bit_equal_whatever_the_order_and_timing(versions, dtype):
    async def whole():
        results = []
        for seed in range(2):
            engine = service(versions, dtype=dtype, lockstep=True, store=False)
            results.append(await episode(engine, random.Random(seed)))
        # A second episode of the same engine gives the same too: what the first left behind plays no part.
        results.append(await episode(engine, random.Random(9)))
        stats = await engine.stats()
        return results, stats

    results, stats = asyncio.run(asyncio.wait_for(whole(), 60))
    assert len(results[0]) == 7 * 2 + 2 * 1 + 2 * 2
    for other in results[1:]:
        for name, one in results[0].items():
            np.testing.assert_array_equal(one.tokens, other[name].tokens)
            assert one.logprobs.tobytes() == other[name].logprobs.tobytes()
            assert one.experts.tobytes() == other[name].experts.tobytes()
            assert one.usage.cached_tokens == other[name].usage.cached_tokens
    assert stats.cached_tokens > stats.prefilled_tokens > 0
    assert stats.accepted > 0


def test_lockstep_waits_for_everyone_and_refuses_strangers(versions):
    async def whole():
        engine = service(versions, lockstep=True)
        with pytest.raises(EngineError, match="open"):
            await engine.generate(ask("r", [1], conversation="stranger"))
        await engine.open(["a", "b", "c"])
        first = asyncio.create_task(engine.generate(ask("a0", [1, 2], 80, conversation="a")))
        await asyncio.sleep(0.05)
        assert not first.done()
        with pytest.raises(EngineError, match="waiting already"):
            await engine.generate(ask("a1", [1, 2], conversation="a"))
        second = asyncio.create_task(engine.generate(ask("b0", [3], 80, conversation="b")))
        await engine.close("c")
        assert (await first).tokens.size > 0
        assert (await second).stop is not StopReason.ABORTED
        # Now b waits for a, is aborted, and a goes on alone once b is closed.
        late = asyncio.create_task(engine.generate(ask("b1", [3], conversation="b")))
        await asyncio.sleep(0.02)
        await engine.abort("b1")
        assert (await late).stop is StopReason.ABORTED
        orphan = asyncio.create_task(engine.generate(ask("b2", [3], conversation="b")))
        await asyncio.sleep(0.02)
        await engine.close("b")
        assert (await orphan).stop is StopReason.ABORTED
        assert (await engine.generate(ask("a2", [4], conversation="a"))).tokens.size > 0

    asyncio.run(asyncio.wait_for(whole(), 30))


def test_an_abort_in_a_round_does_not_change_the_others(versions):
    async def whole(abort):
        engine = service(versions, lockstep=True, store=False, slots=2)
        await engine.open(["a", "b", "c"])
        tasks = [
            asyncio.create_task(engine.generate(ask(name, [i, 2], 90, name, seed=i))) for i, name in enumerate("abc")
        ]
        if abort:
            await until_sampled(engine, 1)
            await asyncio.gather(engine.abort("a"), engine.abort("c"))
        answers = await asyncio.gather(*tasks)
        return answers[1].tokens.tolist(), answers[1].logprobs.tobytes()

    assert asyncio.run(whole(abort=False)) == asyncio.run(whole(abort=True))


def test_lockstep_swaps_between_rounds(versions):
    async def whole():
        engine = service(versions, lockstep=True)
        await engine.open(["a"])
        task = asyncio.create_task(engine.generate(ask("a0", [1, 2], 90, "a")))
        await asyncio.sleep(0)
        await engine.update(versions.publish())
        assert len(set((await task).versions.tolist())) == 1

    asyncio.run(asyncio.wait_for(whole(), 30))


def test_it_starts_on_the_latest_version_of_its_store(tmp_path):
    versions = Versions(tmp_path)
    latest = versions.publish()

    async def whole():
        engine = service(versions)
        assert (await engine.info()).version == latest
        answer = await engine.generate(ask("r", [1, 2, 3]))
        assert set(answer.versions.tolist()) == {latest}
        damaged = versions.publish_damaged()
        with pytest.raises(UpdateRefused, match=f"version {damaged}"):
            service(versions)

    asyncio.run(whole())


def test_deltas_are_followed_and_counted(tmp_path):
    versions = Versions(tmp_path)
    base = from_state_dict(tiny_model(0).swapped_state())
    model = tiny_model(0)
    model.embed_tokens.weight.data[3] += 1
    versions.store.publish(1, from_state_dict(model.swapped_state()), base=(0, base))

    async def whole():
        engine = service(versions, store=False)
        with pytest.raises(UpdateRefused, match="without a weight store"):
            await engine.update(1)
        engine = service(Versions(tmp_path / "other"), store=True)
        engine._store = versions.store
        await engine.update(1)
        stats = await engine.stats()
        assert (stats.version, stats.swaps, stats.deltas_applied) == (1, 1, 1)

    asyncio.run(whole())


def test_weights_of_another_shape_are_refused(tmp_path):
    versions, wide = Versions(tmp_path / "a"), Versions(tmp_path / "b", intermediate_size=64)
    wide.publish()

    async def whole():
        engine = service(versions)
        engine._store = wide.store
        with pytest.raises(UpdateRefused, match="does not fit"):
            await engine.update(1)
        assert (await engine.info()).version == 0

    asyncio.run(whole())


def test_asked_twice_it_answers_both_and_a_caller_who_leaves_takes_his_request_along(versions):
    async def whole():
        engine = service(versions)
        request = ask("same", [1, 2, 3], 40)
        one, two = await asyncio.gather(engine.generate(request), engine.generate(request))
        assert one.tokens.tobytes() == two.tokens.tobytes()
        assert (await engine.stats()).sampled_tokens == one.tokens.size
        task = asyncio.create_task(engine.generate(ask("leaves", [9, 9], 90)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while (await engine.stats()).running or (await engine.stats()).waiting:
            pass

    asyncio.run(asyncio.wait_for(whole(), 30))


def test_a_loop_that_fails_says_so_to_everyone(versions):
    async def whole():
        engine = service(versions)

        def burst(loop):
            raise MemoryError("no room")

        waiting = asyncio.create_task(engine.generate(ask("r", [1, 2, 3], 90)))
        await asyncio.sleep(0)
        engine._commands.put(burst)
        with pytest.raises(EngineError, match="no room"):
            await waiting
        for call in (engine.stats(), engine.generate(ask("s", [1])), engine.close("c")):
            with pytest.raises(EngineError, match="no room"):
                await call
        await engine.shutdown()
        with pytest.raises(EngineError, match="shut down"):
            await engine.info()

    asyncio.run(asyncio.wait_for(whole(), 30))


def test_a_consumer_that_stops_pulling_is_forgotten_with_its_requests(versions, monkeypatch):
    async def whole():
        engine = service(versions)
        await engine.begin(ask("left", [1, 2, 3], 90), "gone", first=True)
        await engine.begin(ask("shared", [1, 2, 4], 90), "gone", first=False)
        shared = asyncio.create_task(engine.generate(ask("shared", [1, 2, 4], 90)))
        await asyncio.sleep(0)
        await engine.stats()  # the engine has all three
        monkeypatch.setattr("etude.engine.outbox.SILENT_SECONDS", 0.01)
        slow = [asyncio.create_task(engine.generate(ask(f"slow{i}", [i], 90, seed=i))) for i in range(12)]
        await asyncio.gather(*slow)
        assert (await shared).stop is not StopReason.ABORTED, "somebody else waits for it"
        with pytest.raises(StreamsLost):
            await engine.pull("gone", 0)

    asyncio.run(asyncio.wait_for(whole(), 30))


def test_pulls_and_streams_end_with_the_engine(versions):
    async def whole():
        engine = service(versions)
        await engine.begin(ask("r", [1, 2, 3], 1), "me", first=True)
        first = await engine.pull("me", 0)
        waits = asyncio.create_task(engine.pull("me", first.number, wait=60))
        await asyncio.sleep(0)
        await engine.shutdown()
        with pytest.raises(EngineError, match="shut down"):
            await waits

    asyncio.run(asyncio.wait_for(whole(), 30))


LEAVES = """
import asyncio, sys
import numpy as np
from etude.engine.protocol import GenerateRequest, Sampling
from etude.engine.builtin.service import EngineService

async def begin():
    requests = [GenerateRequest(f"r{n}", np.array([1, 2, 3], np.int32), Sampling(90, ())) for n in range(200)]
    asking = [asyncio.create_task(engine.generate(request)) for request in requests]
    await asyncio.sleep(0.2)
    return asking

engine = EngineService(sys.argv[1], {"slots": 4, "context": 96, "cache_slots": 6}, "float32", 1)
loop = asyncio.new_event_loop()
asking = loop.run_until_complete(begin())
print(all(one.done() for one in asking))
"""


@pytest.mark.slow
def test_a_process_may_leave_while_its_engine_computes(versions):
    left = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LEAVES, str(versions.folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (left.returncode, left.stdout) == (0, "False\n"), left.stderr
