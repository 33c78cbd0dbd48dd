"""The processes of the benchmark `serve`: the server, and a client that asks it, or the engine itself."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from etude.cluster import Remote
from etude.engine.protocol import GenerateRequest, Piece, Sampling
from etude.engine.remote import RemoteEngine
from etude.engine.streams import Streams
from etude.recipe.compute import ClusterRecipe
from etude.serve.app import App
from etude.serve.gateway import Gateway, Served
from etude.serve.limits import Limits
from etude.serve.server import base_url, listen, serve
from etude.text import CompactFormat, open_tokenizer

NAME = "model"


def pin(core: int) -> None:
    os.sched_setaffinity(0, {core})
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)


class Server:
    """The server over a running engine, in a process of its own."""

    async def start(self, engine: Remote, folder: Path, context: int, in_flight: int, core: int) -> str:
        pin(core)
        tokenizer = open_tokenizer(folder)
        form = CompactFormat(tokenizer)
        served = Served(form, tokenizer, tokenizer.vocab_size, (NAME,), context, context)
        app = App(
            Gateway(RemoteEngine(engine, ClusterRecipe()), served),
            limits=Limits(in_flight=in_flight, per_key=in_flight),
        )
        listening, ready = listen("127.0.0.1", 0), asyncio.Event()
        self._serving = asyncio.create_task(serve(app, listening, drain=0, ready=ready.set))
        await ready.wait()
        return base_url(listening)


@dataclass(slots=True)
class Round:
    seconds: float
    tokens: int
    first: list[float]
    """Seconds from each request to its first token."""
    errors: int


class Client:
    """Asks many requests at once, over HTTP or by calls of the engine."""

    async def prepare(self, engine: Remote, folder: Path, core: int) -> None:
        pin(core)
        self._engine = RemoteEngine(engine, ClusterRecipe())
        self._form = CompactFormat(open_tokenizer(folder))

    async def by_calls(self, requests: int, tokens: int, seed: int) -> Round:
        """Ask with `generate`, whose answer comes whole."""

        async def one(number: int) -> int:
            return len((await self._engine.generate(self._request(number, tokens, seed))).tokens)

        begun = time.perf_counter()
        counts = await asyncio.gather(*(one(number) for number in range(requests)))
        return Round(time.perf_counter() - begun, sum(counts), [], 0)

    async def by_streams(self, requests: int, tokens: int, seed: int) -> Round:
        streams = Streams(self._engine)

        async def one(number: int) -> tuple[float, int]:
            first, count, asked = 0.0, 0, time.perf_counter()
            async for item in streams.stream(self._request(number, tokens, seed)):
                first = first or time.perf_counter() - asked
                count = max(count, item.start + len(item.tokens) if isinstance(item, Piece) else len(item.tokens))
            return first, count

        begun = time.perf_counter()
        ended = await asyncio.gather(*(one(number) for number in range(requests)))
        return Round(time.perf_counter() - begun, sum(count for _, count in ended), [first for first, _ in ended], 0)

    async def by_http(self, url: str, requests: int, tokens: int, seed: int) -> Round:
        host, port = url.removeprefix("http://").split(":")

        async def one(number: int) -> tuple[float, int]:
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                body = json.dumps(self._body(number, tokens, seed)).encode()
                head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(body)}\r\n\r\n"
                asked = time.perf_counter()
                writer.write(head.encode() + body)
                first, count, done = 0.0, 0, False
                while line := await reader.readline():
                    # The first event only opens the answer; the next one has its first token.
                    if not first and b'"delta":{' in line and b'"role"' not in line:
                        first = time.perf_counter() - asked
                    if b'"usage":' in line:
                        count = json.loads(line.removeprefix(b"data: "))["usage"]["completion_tokens"]
                    if line == b"data: [DONE]\n":
                        done = True
                        break
                return first, count if done else -1
            finally:
                writer.close()

        begun = time.perf_counter()
        ended = await asyncio.gather(*(one(number) for number in range(requests)), return_exceptions=True)
        seconds = time.perf_counter() - begun
        good = [one for one in ended if not isinstance(one, BaseException) and one[1] > 0]
        return Round(seconds, sum(count for _, count in good), [f for f, _ in good], len(ended) - len(good))

    def _request(self, number: int, tokens: int, seed: int) -> GenerateRequest:
        prompt = np.array(self._form.opening(None, f"say {number}"), np.int32)
        sampling = Sampling(tokens, self._form.stop_ids, seed=seed + number)
        return GenerateRequest(f"{seed}:{number}:{time.monotonic_ns()}", prompt, sampling)

    def _body(self, number: int, tokens: int, seed: int) -> dict[str, Any]:
        said = [{"role": "user", "content": f"say {number}"}]
        asked = {"model": NAME, "messages": said, "max_tokens": tokens, "seed": seed + number}
        return asked | {"stream": True, "stream_options": {"include_usage": True}}
