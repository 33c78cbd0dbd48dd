"""The full-screen interface of `etude chat`: what the agent says and does as it happens, permissions, and its changes.

It needs textual (the extra `chat`)."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack

from etude.cli.agent_setup import Front, Where, open_session
from etude.cli.screen.app import ChatApp
from etude.harness import ChatPolicy
from etude.harness.sessions import SavedSession


async def run_screen(front: Front, where: Where, task: str | None, saved: SavedSession | None) -> str | None:
    """Run one session in the full-screen interface. Return the name of the session to resume next; None if the user
    leaves."""
    async with AsyncExitStack() as stack:
        app = ChatApp(front, where, task)
        policy = front.open_policy(stack)
        if isinstance(policy, ChatPolicy):
            policy.on_piece = app.piece
        session = await open_session(
            stack, front, where, policy, saved=saved, observer=app.observer, ask=app.agree,
            question=app.question,
        )  # fmt: skip
        app.begin(session, policy)
        following = await app.run_async()
        if following is None and session.place is not None:
            changes = await session.changes()
            waits = f"; {len(changes)} changed files are not applied" if changes and not where.rules.here else ""
            print(f"session {session.place.name}{waits}: --resume {session.place.name} continues it", file=sys.stderr)
        return following


__all__ = ["run_screen"]
