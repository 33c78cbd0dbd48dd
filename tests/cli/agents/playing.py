"""An endpoint for many agents at once: each plays the script of what it was asked first."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from tests.harness.chat_server import completion

USAGE = {"usage": {"prompt_tokens": 50, "completion_tokens": 7}}


class Playing:
    """`scripts`: first prompt -> answers. A prompt in `held` is answered when it is taken out."""

    def __init__(self, scripts: Mapping[str, Sequence[dict[str, Any]]]) -> None:
        self.scripts = scripts
        self.held: set[str] = set()
        self.asked: list[tuple[str, int]] = []
        """Prompt, and how many of its answers had been given."""
        self.keys: set[str] = set()
        self.url = ""

    async def answer(self, request: Request) -> JSONResponse:
        body = await request.json()
        self.keys.add(request.headers.get("authorization", ""))
        prompt = next(message["content"] for message in body["messages"] if message["role"] == "user")
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        self.asked.append((prompt, turn))
        while prompt in self.held:  # noqa: ASYNC110 - another thread lets it go
            await asyncio.sleep(0.02)
        return JSONResponse({**USAGE, **self.scripts[prompt][turn]})


@contextmanager
def playing(scripts: Mapping[str, Sequence[dict[str, Any]]]) -> Iterator[Playing]:
    player = Playing(scripts)
    app = Starlette(routes=[Route("/v1/chat/completions", player.answer, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    server.install_signal_handlers = lambda: None
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
            assert thread.is_alive(), "the endpoint could not be opened"
        player.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
        yield player
    finally:
        player.held.clear()
        server.should_exit = True
        thread.join()


def replacing(path: str, old: str, new: str) -> list[dict[str, Any]]:
    return [
        completion(text="Now", calls=[("replace", {"path": path, "old": old, "new": new})]),
        completion(text=f"{new} it is."),
    ]
