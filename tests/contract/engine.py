"""Contract suite of engines. Subclass `EngineContract` and give it a `case` fixture; the engine serves a tiny model.
`CacheAtSwapContract` needs an engine with the policy of its parameter.

Log-probs and experts are compared with an independent full forward pass at the weight version named for each token.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from etude.engine.protocol import (
    ContextExceeded,
    Engine,
    EngineError,
    GenerateRequest,
    Generation,
    Piece,
    Refusal,
    Sampling,
    StopReason,
    StreamingEngine,
    StreamsLost,
    UpdateRefused,
)
from etude.engine.streams import Streams
from etude.trace import UNKNOWN_EXPERT

Reference = Callable[[int, np.ndarray], tuple[np.ndarray, np.ndarray | None]]


@dataclass
class Case:
    """One engine under test and its reference."""

    make: Callable[[], Coroutine[Any, Any, StreamingEngine]]
    """Makes a new engine; called inside the test's event loop."""
    reference: Reference
    """Maps (version, tokens) to fp32 logits [T, V] and experts [T, layers, k] (None for a dense model)."""
    publish: Callable[[], int]
    """Publishes new weights and returns their version."""
    publish_damaged: Callable[[], int]
    slots: int
    tolerance: float = 2e-4
    policy: str = "reset"
    rounds_until_aborted: int = 4
    """How many times `slots` requests an engine may finish until all of a crowd of 50 times as many have reached it and
    are aborted: more if it samples in another process meanwhile."""
    first: int = 0
    """The version that `make` begins with, which it may set."""


def with_engine(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Gives a test a fresh engine of its case."""

    @functools.wraps(test)
    def run(self: EngineContract, case: Case, **more: Any) -> None:
        async def whole() -> None:
            await test(self, case, await case.make(), **more)

        asyncio.run(asyncio.wait_for(whole(), 60))

    signature = inspect.signature(test)
    asked = [parameter for parameter in signature.parameters.values() if parameter.name != "engine"]
    run.__signature__ = signature.replace(parameters=asked)  # type: ignore[attr-defined]
    return run


async def until_sampled(engine: Engine, tokens: int) -> None:
    while (await engine.stats()).sampled_tokens < tokens:
        pass  # each `await` of stats lets the engine take a step


def prompt_of(length: int, seed: int = 0, vocab: int = 61) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, vocab, length).astype(np.int32)


def ask(name: str, prompt: np.ndarray, max_tokens: int = 12, conversation: str = "", **options: Any) -> GenerateRequest:
    experts_from = options.pop("experts_from", 0)
    options.setdefault("stop", ())
    return GenerateRequest(name, prompt, Sampling(max_tokens, **options), conversation, experts_from)


def check(case: Case, request: GenerateRequest, answer: Generation) -> None:
    """Check everything that must hold for a generation whose tokens were all sampled by one version."""
    tokens = np.concatenate((request.prompt, answer.tokens))
    begin, sampling = request.prompt.size, request.sampling
    assert answer.id == request.id
    assert answer.tokens.dtype == np.int32
    assert answer.logprobs.dtype == np.float32
    assert 1 <= answer.tokens.size == answer.logprobs.size == answer.versions.size <= sampling.max_tokens
    assert answer.usage.prompt_tokens == begin
    (version,) = set(answer.versions.tolist())
    logits, experts = case.reference(version, tokens)
    scaled = logits[begin - 1 : -1] / (sampling.temperature or 1.0)
    logprobs = scaled - np.logaddexp.reduce(scaled, axis=-1, keepdims=True)
    if sampling.top_p < 1:
        order = np.argsort(-logprobs, axis=-1)
        shares = np.exp(np.take_along_axis(logprobs, order, 1).astype(np.float64))
        left_out = np.zeros(logprobs.shape, bool)
        np.put_along_axis(left_out, order, shares.cumsum(-1) - shares >= sampling.top_p, 1)
        logprobs = np.where(left_out, -np.inf, logprobs)
        logprobs -= np.logaddexp.reduce(logprobs, axis=-1, keepdims=True)
    np.testing.assert_allclose(
        answer.logprobs, np.take_along_axis(logprobs, answer.tokens[:, None], 1)[:, 0], atol=case.tolerance, rtol=0
    )
    if sampling.temperature == 0:
        best = np.take_along_axis(logprobs, answer.tokens[:, None], 1)[:, 0]
        assert (best >= logprobs.max(-1) - case.tolerance).all()
    if experts is None:
        assert answer.experts is None
        return
    assert answer.experts is not None
    assert answer.experts.dtype == np.uint16
    assert answer.experts_from == request.experts_from
    assert answer.experts.shape == (tokens.size - request.experts_from, *experts.shape[1:])
    assert (answer.experts[-1] == UNKNOWN_EXPERT).all(), "the last token was not fed to the network"
    np.testing.assert_array_equal(np.sort(answer.experts[:-1], -1), np.sort(experts[request.experts_from : -1], -1))


async def all_of(streams: Streams, request: GenerateRequest) -> list[Any]:
    return [item async for item in streams.stream(request)]


class EngineContract:
    @with_engine
    async def test_it_is_an_engine_and_knows_its_model(self, case: Case, engine: Engine) -> None:
        info = await engine.info()
        assert isinstance(engine, StreamingEngine)
        assert info.version == (await engine.stats()).version == case.first
        assert info.context > 64
        assert info.vocab_size >= 61

    @pytest.mark.parametrize(("temperature", "top_p"), [(0.7, 1.0), (0.0, 1.0), (0.8, 0.6)])
    @with_engine
    async def test_many_more_requests_than_slots_are_all_exact(
        self, case: Case, engine: Engine, temperature: float, top_p: float
    ) -> None:
        lengths = [1, 2, 3, 17, 31, 40]
        options = {"temperature": temperature, "top_p": top_p}
        requests = [
            ask(f"r{i}", prompt_of(lengths[i % 6] + i % 3, i), 3 + i % 14, seed=i, **options)
            for i in range(3 * case.slots)
        ]
        for request, answer in zip(requests, await asyncio.gather(*map(engine.generate, requests)), strict=True):
            check(case, request, answer)
            assert answer.stop is StopReason.LENGTH
            assert answer.tokens.size == request.sampling.max_tokens
        stats = await engine.stats()
        assert (stats.running, stats.waiting) == (0, 0)
        assert stats.sampled_tokens == sum(r.sampling.max_tokens for r in requests)

    @with_engine
    async def test_a_seed_gives_the_same_tokens_alone_and_in_company(self, case: Case, engine: Engine) -> None:
        request = ask("alone", prompt_of(20), 16, seed=5)
        alone = await engine.generate(request)
        company = [ask(f"c{i}", prompt_of(20 + i, i + 1), 16, seed=i) for i in range(case.slots + 2)]
        again, *_ = await asyncio.gather(
            engine.generate(ask("again", prompt_of(20), 16, seed=5)), *map(engine.generate, company)
        )
        other = await engine.generate(ask("other", prompt_of(20), 16, seed=6))
        np.testing.assert_array_equal(alone.tokens, again.tokens)
        assert not np.array_equal(alone.tokens, other.tokens)

    @with_engine
    async def test_it_ends_with_the_first_stop_id(self, case: Case, engine: Engine) -> None:
        prompt = prompt_of(9)
        whole = await engine.generate(ask("whole", prompt, 30, seed=3))
        for place in (0, 3, 7):
            stop = int(whole.tokens[place])
            request = ask(f"s{place}", prompt, 30, seed=3, stop=(stop, 60))
            answer = await engine.generate(request)
            end = next(i for i, token in enumerate(whole.tokens.tolist()) if token in (stop, 60))
            assert answer.stop is StopReason.STOP
            np.testing.assert_array_equal(answer.tokens, whole.tokens[: end + 1])
            check(case, request, answer)

    @with_engine
    async def test_the_context_bounds_prompt_and_answer(self, case: Case, engine: Engine) -> None:
        context = (await engine.info()).context
        with pytest.raises(ContextExceeded):
            await engine.generate(ask("full", prompt_of(context)))
        requests = [ask(f"r{left}", prompt_of(context - left), 100, seed=left) for left in (1, 2, 3, 4)]
        for request, answer in zip(requests, await asyncio.gather(*map(engine.generate, requests)), strict=True):
            assert answer.stop is StopReason.LENGTH
            assert request.prompt.size + answer.tokens.size == context
            check(case, request, answer)

    @pytest.mark.parametrize(
        "wrong",
        [
            ask("empty", prompt_of(0)),
            ask("ids", np.array([1, 1 << 20], np.int32)),
            ask("negative", np.array([1, -1], np.int32)),
            ask("none", prompt_of(3), 0),
            ask("cold", prompt_of(3), temperature=-1.0),
            ask("stop", prompt_of(3), stop=(1 << 20,)),
        ],
        ids=lambda request: request.id,
    )
    @with_engine
    async def test_a_request_that_makes_no_sense_is_refused_and_the_rest_goes_on(
        self, case: Case, engine: Engine, wrong: GenerateRequest
    ) -> None:
        good = asyncio.create_task(engine.generate(ask("good", prompt_of(5))))
        with pytest.raises(EngineError, match=wrong.id):
            await engine.generate(wrong)
        assert (await good).tokens.size == 12

    @with_engine
    async def test_a_conversation_is_prefilled_only_where_it_is_new(self, case: Case, engine: Engine) -> None:
        prompt, have, block = prompt_of(30), 0, (await engine.info()).block
        for turn in range(4):
            request = ask(f"t{turn}", prompt, 10, "c", seed=turn, experts_from=have)
            answer = await engine.generate(request)
            check(case, request, answer)
            assert answer.usage.cached_version == (case.first if answer.usage.cached_tokens else -1)
            if turn and block:
                least = have - 2 - (have - 2) % block
                assert answer.usage.cached_tokens >= least, "all that was there but the last token or two"
            have = prompt.size + answer.tokens.size - 1
            prompt = np.concatenate((prompt, answer.tokens, prompt_of(5, turn)))

    @with_engine
    async def test_a_prompt_that_many_share_is_prefilled_once(self, case: Case, engine: Engine) -> None:
        prompt = prompt_of(40)
        blocker = ask("blocker", prompt_of(3, 9), 2)
        requests = [ask(f"m{i}", prompt, 8, f"c{i}", seed=i) for i in range(case.slots)]
        answers = await asyncio.gather(*map(engine.generate, [blocker, *requests]))
        for request, answer in zip(requests, answers[1:], strict=True):
            check(case, request, answer)
        stats = await engine.stats()
        block = (await engine.info()).block
        if block:
            # Where a prefix is reused in whole blocks, each request computes the rest of its last one.
            assert stats.prefilled_tokens <= 2 + prompt.size + (block > 1) * block * case.slots
        assert stats.cached_tokens == sum(a.usage.cached_tokens for a in answers)
        assert len({answer.tokens.tobytes() for answer in answers}) > 2

    @with_engine
    async def test_abort_returns_what_there_is(self, case: Case, engine: Engine) -> None:
        long = [ask(f"r{i}", prompt_of(4, i), 10_000, seed=i) for i in range(case.slots + 3)]
        tasks = {request.id: asyncio.create_task(engine.generate(request)) for request in long}
        await until_sampled(engine, 1)
        await asyncio.gather(*(engine.abort(request.id) for request in long), engine.abort("nobody"))
        for request in long:
            answer = await tasks[request.id]
            assert answer.stop in (StopReason.ABORTED, StopReason.LENGTH)
            if answer.tokens.size:
                check(case, request, answer)
        assert (await engine.generate(ask("after", prompt_of(5)))).tokens.size == 12
        assert (await engine.stats()).running == 0

    @with_engine
    async def test_weights_change_between_two_tokens(self, case: Case, engine: Engine) -> None:
        context, version = (await engine.info()).context, case.publish()
        # More than it answers while the update is under way, however long that takes, and not all end together.
        requests = [
            ask(f"r{i}", prompt_of(4, i), context // 2 + i % 7, "c" * i, seed=i) for i in range(50 * case.slots)
        ]
        tasks = [asyncio.create_task(engine.generate(request)) for request in requests]
        await until_sampled(engine, case.slots)
        await engine.update(version)
        assert (await engine.info()).version == version
        await until_sampled(engine, (await engine.stats()).sampled_tokens + case.slots)
        await asyncio.gather(*(engine.abort(request.id) for request in requests))
        answers = zip(requests, await asyncio.gather(*tasks), strict=True)
        mixed = [(request, answer) for request, answer in answers if len(set(answer.versions.tolist())) == 2]
        assert mixed
        for request, answer in mixed:
            assert (np.diff(answer.versions) >= 0).all()
            old = answer.versions == case.first
            begin = request.prompt.size
            logits, _ = case.reference(case.first, np.concatenate((request.prompt, answer.tokens)))
            logprobs = logits[begin - 1 : -1] - np.logaddexp.reduce(logits[begin - 1 : -1], axis=-1, keepdims=True)
            expected = np.take_along_axis(logprobs, answer.tokens[:, None], 1)[:, 0]
            np.testing.assert_allclose(answer.logprobs[old], expected[old], atol=case.tolerance, rtol=0)
            # What begins now has nothing of the old weights, though the conversation goes on.
            grown = np.concatenate((request.prompt, answer.tokens))[: context - 20]
            follow = ask(f"{request.id}/2", grown, 8, request.conversation)
            check(case, follow, await engine.generate(follow))
        assert (await engine.stats()).swaps == 1

    @with_engine
    async def test_a_request_after_an_update_reads_no_older_cache(self, case: Case, engine: Engine) -> None:
        before = await engine.generate(ask("before", prompt_of(30), 10, "c"))
        version = case.publish()
        await engine.update(version)
        await engine.update(version)
        request = ask("after", np.concatenate((prompt_of(30), before.tokens)), 10, "c")
        answer = await engine.generate(request)
        assert set(answer.versions.tolist()) == {version}
        assert answer.usage.cached_tokens == 0
        check(case, request, answer)

    @with_engine
    async def test_a_version_that_cannot_be_verified_changes_nothing(self, case: Case, engine: Engine) -> None:
        with pytest.raises(UpdateRefused, match="7777"):
            await engine.update(7777)
        damaged = case.publish_damaged()
        with pytest.raises(UpdateRefused, match=str(damaged)):
            await engine.update(damaged)
        request = ask("still", prompt_of(12), 9)
        answer = await engine.generate(request)
        assert set(answer.versions.tolist()) == {case.first}
        check(case, request, answer)
        await engine.update(case.publish())
        check(case, request, await engine.generate(request))

    @with_engine
    async def test_pieces_are_the_answer_as_it_is_sampled(self, case: Case, engine: StreamingEngine) -> None:
        streams = Streams(engine, every=0.001)
        requests = [ask(f"r{i}", prompt_of(5 + i, i), 1 + 25 * (i % 3), seed=i) for i in range(2 * case.slots)]
        again = await asyncio.gather(*(engine.generate(replace(r, id=f"{r.id}/2")) for r in requests))
        most = 0
        while most <= 3:  # on a busy machine, an engine in another process may be done before it is asked a third time
            news = await asyncio.gather(*(all_of(streams, request) for request in requests))
            for request, items, plain in zip(requests, news, again, strict=True):
                pieces, answer = [item for item in items if isinstance(item, Piece)], items[-1]
                assert isinstance(answer, Generation)
                check(case, request, answer)
                np.testing.assert_array_equal(answer.tokens, plain.tokens)
                start = 0
                for piece in pieces:
                    end = start + piece.tokens.size
                    assert (piece.id, piece.start) == (request.id, start) != (request.id, end)
                    for name in ("tokens", "logprobs", "versions"):
                        np.testing.assert_array_equal(getattr(piece, name), getattr(answer, name)[start:end])
                    start = end
            most = max(len(items) for items in news)

    @with_engine
    async def test_a_delivery_may_be_pulled_again_until_it_is_acknowledged(
        self, case: Case, engine: StreamingEngine
    ) -> None:
        with pytest.raises(StreamsLost):
            await engine.pull("me", 0)
        with pytest.raises(StreamsLost):
            await engine.begin(ask("early", prompt_of(3)), "me", first=False)
        await engine.begin(ask("short", prompt_of(3), 2), "me", first=True)
        await engine.begin(ask("short", prompt_of(3), 2), "me", first=True)
        items, after = [], 0
        while not any(isinstance(item, Generation) for item in items):
            delivery = await engine.pull("me", after)
            lost = asyncio.create_task(engine.pull("me", after))
            again = await engine.pull("me", after)
            assert (await lost).number in (after, delivery.number)
            assert [item.id for item in again.items] == [item.id for item in delivery.items]
            assert again.number == delivery.number
            items, after = items + delivery.items, delivery.number
        await engine.begin(ask("long", prompt_of(4), 10_000), "me", first=False)
        (piece,) = (await engine.pull("me", after, wait=3600, every=3600)).items
        assert (piece.start, type(piece)) == (0, Piece), "the first token comes at once"
        after += 1
        (answer,) = (await engine.pull("me", after, wait=3600, every=3600)).items
        assert isinstance(answer, Generation), "then nothing until the end"
        after += 1
        start = asyncio.get_running_loop().time()
        assert (await engine.pull("me", after, wait=0.2)).items == []
        assert asyncio.get_running_loop().time() - start >= 0.19
        await engine.begin(ask("full", prompt_of((await engine.info()).context)), "me", first=False)
        (refusal,) = (await engine.pull("me", after)).items
        assert isinstance(refusal, Refusal)
        assert isinstance(refusal.error, ContextExceeded)
        with pytest.raises(StreamsLost):
            await engine.pull("me", after + 7)

    @with_engine
    async def test_who_leaves_a_stream_ends_its_request_alone(self, case: Case, engine: StreamingEngine) -> None:
        streams = Streams(engine)
        long = asyncio.create_task(all_of(streams, ask("stays", prompt_of(5), 60)))
        leaving = streams.stream(ask("leaves", prompt_of(4), 10_000))
        assert isinstance(await anext(leaving), Piece)
        crowd = [
            asyncio.create_task(all_of(streams, ask(f"crowd{i}", prompt_of(4, i), 10_000, seed=i)))
            for i in range(20 * case.slots)
        ]
        while (await engine.stats()).waiting < 10 * case.slots:
            pass
        for task in crowd:
            task.cancel()
        await asyncio.gather(leaving.aclose(), *crowd, return_exceptions=True)
        assert (await long)[-1].tokens.size == 60
        while (stats := await engine.stats()).running or stats.waiting:
            pass
        assert stats.sampled_tokens < case.rounds_until_aborted * case.slots * ((await engine.info()).context - 4), (
            "requests went on"
        )
        assert (await all_of(streams, ask("leaves", prompt_of(4), 3)))[-1].tokens.size == 3, "a new consumer"
        endless = asyncio.create_task(all_of(streams, ask("endless", prompt_of(4), 10_000)))
        await until_sampled(engine, (await engine.stats()).sampled_tokens + 1)
        await engine.abort("endless")
        assert (await endless)[-1].stop in (StopReason.ABORTED, StopReason.LENGTH)

    @with_engine
    async def test_open_and_close_are_hints(self, case: Case, engine: Engine) -> None:
        await engine.open(["a", "b"])
        assert (await engine.generate(ask("r", prompt_of(5), conversation="a"))).tokens.size == 12
        await engine.close("a")
        await engine.close("never opened")


class CacheAtSwapContract:
    """What requests read of the cache after an update. `case.policy` is the engine's `cache_at_swap`."""

    @with_engine
    async def test_what_is_read_after_an_update(self, case: Case, engine: Engine) -> None:
        shared, block = prompt_of(64), (await engine.info()).block or 1
        old = await engine.generate(ask("old", shared, 8, "goes on"))
        version = case.publish()
        await engine.update(version)
        own = await engine.generate(ask("own", np.concatenate((shared, old.tokens, prompt_of(3, 1))), 4, "goes on"))
        new = await engine.generate(ask("new", np.concatenate((shared, prompt_of(4, 2))), 4, "is new"))
        alone = await engine.generate(ask("alone", np.concatenate((shared, prompt_of(4, 3))), 4))
        reads = {name: answer.usage.cached_version for name, answer in (("own", own), ("new", new), ("alone", alone))}
        assert (
            reads
            == {
                "reset": {"own": -1, "new": version, "alone": version},
                "salt": {"own": case.first, "new": -1, "alone": version},
                "keep": dict.fromkeys(("own", "new", "alone"), case.first),
            }[case.policy]
        )
        for answer in (own, new, alone):
            assert (answer.usage.cached_tokens >= 64 - 2 - block) == (answer.usage.cached_version >= case.first)
        more = np.concatenate((shared, old.tokens, prompt_of(3, 1), own.tokens, prompt_of(2, 5)))
        again = await engine.generate(ask("again", more, 4, "goes on"))
        oldest = version if case.policy == "reset" else case.first
        assert again.usage.cached_version == oldest, "its first tokens are as old"
        # Once closed, a conversation has no past.
        await engine.close("goes on")
        later = await engine.generate(ask("later", np.concatenate((shared, old.tokens, prompt_of(3, 4))), 4, "goes on"))
        assert later.usage.cached_version == (case.first if case.policy == "keep" else version)
