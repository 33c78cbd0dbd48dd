"""The screen in a test: a session with a scripted endpoint, driven by keys, looked at as text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.harness.chat_server import ChatServer
from textual.pilot import Pilot

from etude.cli.agent_setup import EndpointOptions, Rules, Where, endpoint_front, open_session
from etude.cli.screen.app import ChatApp
from etude.harness import ChatPolicy, ChatSession
from etude.harness.sessions import SavedSession

PATIENCE = 120.0
VIEW = Rules()
FILES = {
    "calc.py": "# the larger of two\ndef larger(a, b):\n    return min(a, b)\n",
    "check.py": "from calc import larger\nif larger(2, 7) != 7:\n    raise SystemExit('FAIL larger')\nprint('ok')\n",
}


def write_files(folder: Path) -> Path:
    folder.mkdir()
    for path, text in FILES.items():
        (folder / path).write_text(text)
    return folder


class Seen:
    """A running screen."""

    def __init__(self, app: ChatApp, pilot: Pilot[str], session: ChatSession, server: ChatServer) -> None:
        self.app, self.pilot, self.session, self.server = app, pilot, session, server

    @property
    def text(self) -> str:
        strips = self.app.screen._compositor.render_strips()
        return "\n".join(strip.text.rstrip() for strip in strips)

    async def until(self, what: str | Callable[[], bool]) -> str:
        """Waits until it is on the screen, or true."""
        deadline = time.monotonic() + PATIENCE
        while not (what in self.text if isinstance(what, str) else what()):
            assert time.monotonic() < deadline, f"{what!r} did not come:\n{self.text}"
            await self.pilot.pause(0.05)
        await self.pilot.pause()
        return self.text

    async def settle(self, *_: float) -> None:
        """Waits until what was sent is handled, and what that has sent. Textual's own wait after each key is one for
        a process that does nothing, of up to a second."""
        for _ in range(2):
            await asyncio.sleep(0)
            if self.app.is_running:
                await self.pilot._wait_for_screen(PATIENCE)

    async def say(self, text: str) -> None:
        self.app.entry.text = text
        await self.pilot.press("enter")

    async def idle(self) -> str:
        return await self.until(lambda: self.app._worker is None)


@asynccontextmanager
async def screen(
    folder: Path,
    answers: Sequence[Any],
    *,
    size: tuple[int, int] = (80, 24),
    rules: Rules = VIEW,
    sessions: Path | None = None,
    saved: SavedSession | None = None,
    task: str | None = None,
    shell: bool = False,
    context: int = 128_000,
    turns: int = 20,
    **server: Any,
) -> AsyncIterator[Seen]:
    async with AsyncExitStack() as stack:
        endpoint = await stack.enter_async_context(ChatServer(answers, **server))
        front = endpoint_front(EndpointOptions(endpoint.url, "scripted", "NO_KEY", context, turns))
        where = Where(folder, sessions, shell, rules)
        app = ChatApp(front, where, task)
        policy = front.open_policy(stack)
        assert isinstance(policy, ChatPolicy)
        policy._endpoint = replace(policy._endpoint, pause_seconds=0.01)
        policy.on_piece = app.piece
        session = await open_session(
            stack, front, where, policy, saved=saved, observer=app.observer, ask=app.agree,
            question=app.question,
        )  # fmt: skip
        app.begin(session, policy)
        async with app.run_test(size=size) as pilot:
            seen = Seen(app, pilot, session, endpoint)
            with pytest.MonkeyPatch.context() as patch:
                for module in ("app", "pilot"):
                    patch.setattr(f"textual.{module}.wait_for_idle", seen.settle)
                yield seen
        endpoint.go_on.set()
