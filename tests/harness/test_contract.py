from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
from tests.contract.policy import PROFILE, PolicyContract
from tests.harness.chat_server import ChatServer, completion
from tests.harness.parts import ScriptedEngine, compact_format, playing, written

from etude.engine.protocol import EngineError
from etude.harness import (
    ChatPolicy,
    Endpoint,
    RecordingPolicy,
    ScriptedPolicy,
    TokenPolicy,
    TokenSampling,
)
from etude.text import format_call
from etude.trace import TraceBuilder

SCHEMAS = {schema.name: schema.call_schema() for schema in PROFILE.schemas()}


def raw(action) -> str:
    return format_call(action[0], action[1], SCHEMAS[action[0]])


class TestScripted(PolicyContract):
    @pytest.fixture
    def make(self):
        @asynccontextmanager
        async def open_policy(actions):
            yield ScriptedPolicy([a if isinstance(a, str) else f"> {raw(a)}" for a in actions], PROFILE)

        return open_policy

    @pytest.fixture
    def broken(self, make):
        return lambda: make([])


class TestRecording(TestScripted):
    @pytest.fixture
    def make(self):
        @asynccontextmanager
        async def open_policy(actions):
            inner = ScriptedPolicy([a if isinstance(a, str) else f"> {raw(a)}" for a in actions], PROFILE)
            yield RecordingPolicy(inner, compact_format(), PROFILE.schemas(), 4096, TraceBuilder())

        return open_policy


class TestToken(PolicyContract):
    @pytest.fixture
    def make(self):
        @asynccontextmanager
        async def open_policy(actions, write=None):
            turns = [written(text=a) if isinstance(a, str) else written(raw(a)) for a in actions]
            engine = ScriptedEngine(write or playing(turns))
            sampling = TokenSampling(context=4096)
            yield TokenPolicy(engine, compact_format(), PROFILE.schemas(), sampling, TraceBuilder(), conversation="c")

        return open_policy

    @pytest.fixture
    def broken(self, make):
        def fail(request):
            raise EngineError("lost")

        return lambda: make([], fail)


class TestChat(PolicyContract):
    @pytest.fixture
    def make(self):
        @asynccontextmanager
        async def open_policy(actions, status=200):
            answers = [completion(text=a) if isinstance(a, str) else completion(calls=[a]) for a in actions]
            async with ChatServer(answers, status=status) as server:
                policy = ChatPolicy(Endpoint(server.url, "tiny", pause_seconds=0.01), PROFILE.schemas())
                try:
                    yield policy
                finally:
                    await policy.aclose()

        return open_policy

    @pytest.fixture
    def broken(self, make):
        return lambda: make([], 503)
