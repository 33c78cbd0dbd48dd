"""etude chat: talk to an agent whose model comes from a run or an endpoint.

The agent works on a copy-on-write view of a folder, or directly in the folder (`--here`).

This file holds the line mode, for pipes and terminals that cannot position text. The package `screen` holds the
full-screen interface.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import select
import signal
import sys
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from etude.cli.agent_setup import EndpointOptions, Front, Rules, Where, endpoint_front, find_saved, open_session
from etude.cli.run_front import run_front
from etude.cli.show import Show, print_diff
from etude.cli.visible import exact, visible
from etude.cli.wording import how_it_ended
from etude.harness import Answer, ChatSession, RequestedAction, write_sample
from etude.harness.permissions import always_rules
from etude.harness.sessions import SavedSession, SessionError, record_all_kept_lines

SAMPLE_TASK = "check.py fails, fix it"
_WAKE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class ChatOptions:
    run: Path | None
    task: str | None
    folder: Path | None
    stage: str | None
    yes: bool
    endpoint: EndpointOptions | None
    sessions: Path
    shell: bool = True
    resume: str | None = None
    rules: Rules = field(default_factory=Rules)
    plain: bool = False
    consent: bool = False


def chat_command(options: ChatOptions) -> int:
    if options.run is not None:
        front = run_front(options.run, options.stage)
    elif options.endpoint is not None:
        front = endpoint_front(options.endpoint)
        options = replace(options, folder=options.folder or Path())
    else:
        raise SessionError(
            "nobody to talk to: give a run folder (etude chat runs/tiny), or an endpoint (--endpoint URL --model NAME)"
        )
    options.rules.parsed()
    if options.folder is None and (options.rules.here or options.resume):
        raise SessionError("the sample is deleted after the chat: --here and --resume need a folder, given by --folder")
    where = saved = None
    if options.folder is not None:
        where = Where(options.folder, options.sessions, options.shell, options.rules, options.consent)
        record_all_kept_lines(options.sessions, options.folder)
        saved = find_saved(options.sessions, options.folder, options.resume, options.rules.here)
    # Treat SIGTERM like Ctrl-C, so that boxes and temporary folders are removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    lines = _why_lines(options)
    if lines is None:
        return asyncio.run(_on_screen(options, front, where))
    if lines:
        print(f"etude: line mode, since {lines}", file=sys.stderr)
    asyncio.run(converse(front, options.task, where, yes=options.yes, saved=saved))
    return 0


def _why_lines(options: ChatOptions) -> str | None:
    """Return why the chat uses line mode, empty if the user asked for it; None if it uses the full-screen interface."""
    if options.plain or options.yes:
        return ""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return "standard input or output is not a terminal"
    if os.environ.get("TERM", "dumb") == "dumb":
        return "this terminal (TERM) cannot position text"
    if importlib.util.find_spec("textual") is None:
        return "textual is missing: `pip install 'etude[chat]'` installs the full-screen interface"
    return None


async def _on_screen(options: ChatOptions, front: Front, where: Where | None) -> int:
    """Run a session in the full-screen interface, then every session that the user switches to."""
    from etude.cli.screen import run_screen

    async with AsyncExitStack() as stack:
        if where is None:
            where = Where(_sample(stack), None, options.shell)
        task, resume = options.task, options.resume
        while True:
            saved = find_saved(options.sessions, where.folder, resume, options.rules.here)
            resume = await run_screen(front, where, task, saved)
            task = None
            if resume is None:
                return 0


def _sample(stack: AsyncExitStack) -> Path:
    return write_sample(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="etude-sample-"))))


async def converse(
    front: Front, task: str | None, where: Where | None, *, yes: bool, saved: SavedSession | None = None
) -> None:
    """Run requests in line mode until the user enters an empty one. Without `where`, the agent works on a sample
    repository. With `yes`, the first request's change is written without asking, and the chat ends."""
    console = Console()
    async with AsyncExitStack() as stack:
        if where is None:
            folder = _sample(stack)
            where, task = Where(folder), task or SAMPLE_TASK
            console.print(f"a sample repository: {', '.join(sorted(p.name for p in folder.iterdir()))}", style="dim")
        policy = front.open_policy(stack)
        session = await open_session(
            stack, front, where, policy, saved=saved, observer=Show(console),
            ask=None if yes else partial(_agree, console), question=_question,
        )  # fmt: skip
        if session.interrupted:
            await session.resume()
        while text := task or _ask("task (empty to leave): "):
            task = None
            console.print(visible(text), style="bold", markup=False)
            outcome = await session.run(text)
            console.print(f"({how_it_ended(outcome)})", style="dim", markup=False)
            await (_settle(session, console) if where.rules.here else _offer(session, console, yes))
            if yes:
                break


async def _agree(console: Console, wish: RequestedAction) -> Answer:
    console.print(f"the agent wants to {wish.kind}: {exact(wish.what)}", style="bold yellow", markup=False)
    if wish.shown:
        console.print(exact(wish.shown.rstrip("\n")), markup=False, highlight=False)
    always = ", ".join(exact(str(rule)) for rule in always_rules(wish))
    answer = _ask(f"allow it? [y/N/a(lways: {always})] ").lower()
    return Answer(answer in ("y", "yes", "a"), always=answer == "a")


async def _question(question: str) -> str:
    return _ask(f"{visible(question)}\n> ")


async def _settle(session: ChatSession, console: Console) -> None:
    """Record an agent's changes as accepted: each change in the user's own folder was permitted before it was made."""
    if changed := await session.apply():
        console.print(f"changed {visible(', '.join(changed))}", style="dim", markup=False)


async def _offer(session: ChatSession, console: Console, yes: bool) -> None:
    for path in await session.left_out():
        console.print(f"{visible(path)} became too large to be read: it is left out", style="red", markup=False)
    diff = await session.diff()
    if not diff:
        console.print("nothing was changed", style="dim")
        return
    print_diff(console, diff)
    answer = "y" if yes else _ask("apply this change? [y/N] ").lower()
    if answer in ("y", "yes"):
        console.print(f"applied to {visible(', '.join(await session.apply()))}", markup=False)
        return
    if answer:  # an empty line or the end of the input is no rejection
        await session.refuse()
    console.print("left as it was", style="dim")


def _ask(prompt: str) -> str:
    """Read a line from the user; empty at the end of the input.

    The line is read on the event loop's own thread, with Python's default handler for Ctrl-C. On another thread, only a
    line of input could end the wait. Blocking the loop is fine, since nothing else runs while the user thinks.
    """
    kept = signal.signal(signal.SIGINT, signal.default_int_handler)
    print(prompt, end="", flush=True)  # input() itself would ask on stderr
    try:
        # A signal that arrives just before a read starts is handled only after the line. So wait until there is one.
        # This works at terminals only: the next line of a pipe may already be in a buffer that select does not see.
        while sys.stdin.isatty() and not select.select([sys.stdin], [], [], _WAKE_SECONDS)[0]:
            pass
        return input().strip()
    except EOFError:
        print()
        return ""
    finally:
        signal.signal(signal.SIGINT, kept)
