"""etude agent: runs one request with an endpoint's model or a run's agent, and prints the change. For scripts."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console

from etude.cli.agent_setup import EndpointOptions, Front, Rules, Where, endpoint_front, find_saved, open_session
from etude.cli.run_front import run_front
from etude.cli.show import Show
from etude.cli.visible import visible
from etude.cli.wording import how_it_ended
from etude.harness import Observer, Outcome
from etude.harness.sessions import SavedSession, SessionError, record_all_kept_lines
from etude.trace import StopCause


@dataclass(frozen=True, slots=True)
class AgentOptions:
    prompt: str | None
    """The user's request. None continues the unfinished request of the resumed session."""
    folder: Path
    endpoint: EndpointOptions
    shell: bool
    apply: bool
    as_json: bool
    sessions: Path
    resume: str | None
    rules: Rules = field(default_factory=Rules)
    consent: bool = False
    run: Path | None = None
    """Run folder whose trained agent is used instead of the endpoint."""


def agent_command(options: AgentOptions) -> int:
    if not options.folder.is_dir():
        raise SessionError(f"{options.folder} is not a folder")
    options.rules.parsed()
    front = run_front(options.run) if options.run is not None else endpoint_front(options.endpoint)
    record_all_kept_lines(options.sessions, options.folder)
    saved = find_saved(options.sessions, options.folder, options.resume, options.rules.here)
    if options.prompt is None and saved is None:
        raise SessionError("nothing to do: give a prompt with -p, or a session to continue with --resume")
    # Treat SIGTERM like Ctrl-C, so that boxes are removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return asyncio.run(_work(options, front, saved))


async def _work(options: AgentOptions, front: Front, saved: SavedSession | None) -> int:
    told = Console(stderr=True)
    observer = Observer() if options.as_json else Show(told)
    async with AsyncExitStack() as stack:
        policy = front.open_policy(stack)
        where = Where(options.folder, options.sessions, options.shell, options.rules, options.consent)
        session = await open_session(stack, front, where, policy, saved=saved, observer=observer)
        outcome: Outcome | None = None
        if session.interrupted or (options.prompt is None and session.unfinished):
            outcome = await session.resume()
        if options.prompt is not None and (outcome is None or not outcome.failed_by_us):
            outcome = await session.run(options.prompt)
        diff = await session.diff()
        applied = await session.apply() if options.apply and diff else []
        _tell(options, outcome, diff, applied, str(session.place), told)
        done = outcome is None or outcome.stop in (StopCause.FINISHED, StopCause.REPLIED)
        return 0 if done else 1


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
        told.print(f"({how_it_ended(outcome)})", style="dim", markup=False)
        if outcome.final_text:
            print(visible(outcome.final_text))
    if options.rules.here and diff:
        sys.stdout.write(visible(diff))
    elif diff and not applied:
        sys.stdout.write(visible(diff))
        told.print(
            "not applied: to write it, run the same command without -p and with --resume last --apply", style="dim"
        )
    elif applied:
        told.print(f"applied to {visible(', '.join(applied))}", markup=False)
    told.print(f"session {place}", style="dim", markup=False)
