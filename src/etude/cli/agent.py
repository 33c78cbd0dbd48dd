"""etude agent: the harness with any OpenAI-compatible endpoint, for scripts: one request, its change and a result."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from etude.cli.chat import Show, visible
from etude.harness import ChatPolicy, ChatSession, Endpoint, Observer, Outcome, session_schemas
from etude.harness.background import is_agent
from etude.harness.sessions import SavedSession, SessionError, SessionRecord, list_sessions, load_session
from etude.recipe.acting import HarnessRecipe, SandboxRecipe
from etude.sandbox import beside, open_sandboxes, temporary_store
from etude.trace import StopCause

LAST = "last"
BOX = SandboxRecipe(memory_mb=4096, processes=512, command_seconds=120.0)
"""A user's repository needs more than a task of a tiny model."""


@dataclass(frozen=True, slots=True)
class AgentOptions:
    prompt: str | None
    """None goes on with what a session was doing."""
    folder: Path
    url: str
    model: str
    key: str
    """Name of the environment variable that holds the key."""
    context: int
    turns: int
    shell: bool
    apply: bool
    as_json: bool
    sessions: Path
    resume: str | None


def default_sessions() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "etude" / "sessions"


def agent_command(options: AgentOptions) -> int:
    if not options.folder.is_dir():
        raise SessionError(f"{options.folder} is not a folder")
    saved = _saved(options)
    if options.prompt is None and saved is None:
        raise SessionError("nothing to do: give a prompt with -p, or a session to go on with by --resume")
    # SIGTERM asks like Ctrl-C does: boxes go with the agent.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return asyncio.run(_work(options, saved))


def _saved(options: AgentOptions) -> SavedSession | None:
    if options.resume is None:
        return None
    place = options.sessions / options.resume
    if options.resume == LAST:
        mine = str(options.folder.resolve())
        found = (load_session(folder) for folder in list_sessions(options.sessions) if not is_agent(folder))
        newest = next((session for session in found if session.about.get("folder") == mine), None)
        if newest is None:
            raise SessionError(f"{options.sessions} has no session of {mine}")
        return newest
    if is_agent(place):
        raise SessionError(f"{options.resume} is an agent in the background: `etude agents resume {options.resume}`")
    return load_session(place)


async def _work(options: AgentOptions, saved: SavedSession | None) -> int:
    told = Console(stderr=True)
    observer = Observer() if options.as_json else Show(told)
    harness = harness_of(options)
    async with AsyncExitStack() as stack:
        sandboxes = None
        if options.shell:
            boxes = stack.enter_context(temporary_store("etude-agent-"))
            sandboxes = open_sandboxes(beside(BOX), boxes)
            stack.push_async_callback(sandboxes.close)
        endpoint = Endpoint(options.url, options.model, os.environ.get(options.key, ""))
        policy = ChatPolicy(endpoint, session_schemas(harness))
        stack.push_async_callback(policy.aclose)
        record = None if saved else _begin(options, harness)
        session = ChatSession(
            options.folder, policy, harness, BOX, sandboxes, observer=observer, record=record, saved=saved
        )
        await stack.enter_async_context(session)
        outcome: Outcome | None = None
        if session.interrupted:
            outcome = await session.go_on()
        if options.prompt is not None and (outcome is None or not outcome.failed_by_us):
            outcome = await session.run(options.prompt)
        diff = await session.diff()
        applied = await session.apply() if options.apply and diff else []
        place = saved.folder if saved else record.folder if record else None
        _tell(options, outcome, diff, applied, str(place), told)
        done = outcome is None or outcome.stop in (StopCause.FINISHED, StopCause.REPLIED)
        return 0 if done else 1


def harness_of(options: AgentOptions) -> HarnessRecipe:
    return HarnessRecipe(
        profile="full",
        max_turns=options.turns,
        max_tool_calls=options.turns * 8,
        max_tokens=options.turns * 8_000,
        max_turn_tokens=16_000,
        max_output_tokens=16_000,
        summary_trigger=options.context * 3 // 4,
        max_summary_tokens=4_000,
        wall_seconds=6 * 3600.0,
    )


def _begin(options: AgentOptions, harness: HarnessRecipe) -> SessionRecord:
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    options.sessions.mkdir(parents=True, exist_ok=True, mode=0o700)
    about = {"profile": harness.profile, "model": options.model, "folder": str(options.folder.resolve())}
    return SessionRecord.begin(options.sessions / name, **about, consent=False)


def _tell(
    options: AgentOptions, outcome: Outcome | None, diff: str, applied: list[str], place: str, told: Console
) -> None:
    if options.as_json:
        result = {
            "stop": outcome.stop.value if outcome else "",
            "error": outcome.error if outcome else "",
            "text": outcome.final_text if outcome else "",
            "usage": asdict(outcome.usage) if outcome else {},
            "diff": diff,
            "applied": applied,
            "session": place,
        }
        print(json.dumps(result))
        return
    if outcome is not None:
        why = f": {visible(outcome.error)}" if outcome.error else ""
        told.print(f"({outcome.stop}{why}, {outcome.usage.turns} turns)", style="dim", markup=False)
        if outcome.final_text:
            print(visible(outcome.final_text))
    if diff and not applied:
        sys.stdout.write(visible(diff))
        told.print("not applied: the same command with --resume last --apply keeps it", style="dim")
    elif applied:
        told.print(f"applied to {visible(', '.join(applied))}", markup=False)
    told.print(f"session {place}", style="dim", markup=False)
