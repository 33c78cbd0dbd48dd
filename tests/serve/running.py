"""A server in this process, on a port of its own, with its own thread and event loop."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from tests.serve.scripted_engine import Script, ScriptedEngine
from tests.text.formats.tiny import Letters

from etude.serve.app import App
from etude.serve.gateway import Gateway, Served
from etude.serve.server import base_url, listen, serve
from etude.text.format import Format
from etude.text.formats import Qwen3Format

LETTERS = Letters()
QWEN = Qwen3Format(LETTERS)
NAME = "tiny"
T = TypeVar("T")


class Running:
    """The server under test: `url`, its engine, and `inside` to run something on its event loop."""

    def __init__(self) -> None:
        self.url = ""
        self.app: App
        self.engine: Any
        self.over: asyncio.Event
        self._loop: asyncio.AbstractEventLoop

    def inside(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def end(self) -> None:
        with suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self.over.set)

    def call(self, function: Callable[[], T]) -> T:
        async def called() -> T:
            return function()

        return self.inside(called())


@contextmanager
def running(
    make: Callable[[], Coroutine[Any, Any, tuple[Any, Served]]],
    *,
    drain: float = 0,
    send_buffer: int | None = None,
    **options: Any,
) -> Iterator[Running]:
    server, ready = Running(), threading.Event()
    failure: list[BaseException] = []

    async def whole() -> None:
        server._loop = asyncio.get_running_loop()
        server.engine, served = await make()
        server.app = App(Gateway(server.engine, served, every=0.01), **options)
        listening = listen("127.0.0.1", 0)
        if send_buffer is not None:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        server.url = base_url(listening)
        server.over = asyncio.Event()
        await serve(server.app, listening, drain=drain, ready=ready.set, until=server.over)
        if hasattr(server.engine, "shutdown"):
            await server.engine.shutdown()

    def run() -> None:
        try:
            asyncio.run(whole())
        except BaseException as error:  # noqa: BLE001 - the test's thread raises it
            failure.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(60)
        if failure:
            raise failure[0]
        yield server
    finally:
        server.end()
        thread.join(60)


def scripted(script: Script, form: Format = QWEN, *, context: int = 4096, max_tokens: int = 1024, **more: Any) -> Any:
    async def make() -> tuple[ScriptedEngine, Served]:
        engine = ScriptedEngine(script, vocab_size=LETTERS.size, context=context, **more)
        return engine, Served(form, LETTERS, LETTERS.size, (NAME,), context, max_tokens)

    return make
