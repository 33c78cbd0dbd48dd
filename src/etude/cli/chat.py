"""etude chat: the agent just trained, through the harness that trained it, on a copy-on-write view of a folder."""

from __future__ import annotations

import asyncio
import select
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.syntax import Syntax

from etude.harness import (
    ChatSession,
    Conversation,
    Observer,
    Policy,
    TokenPolicy,
    TokenSampling,
    Turn,
    format_of,
    session_schemas,
    write_sample,
)
from etude.journal import RunPaths
from etude.lineage import LineageError, LineageState
from etude.recipe import Recipe, load_recipe
from etude.sandbox import beside, open_sandboxes, temporary_store
from etude.trace import ToolEvent, TraceUsage
from etude.trace.builder import TraceBuilder

_STAGES = ("rl", "continued", "sft")
SAMPLE_TASK = "check.py fails, fix it"
_WAKE_SECONDS = 0.2

_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}

OpenPolicy = Callable[[AsyncExitStack], Policy]
"""Makes the agent; what has to be ended with the chat goes on the stack."""


class Show(Observer):
    """Prints what the agent does as it does it."""

    def __init__(self, console: Console) -> None:
        self._console = console

    async def turn(self, conversation: Conversation, turn: Turn) -> None:
        for text in (turn.thinking, turn.text):
            if text.strip():
                self._print(text.strip(), "italic")

    async def tool(self, event: ToolEvent) -> None:
        self._print(f"> {event.arguments}", "cyan" if event.ok else "red")
        if event.output:
            self._print(event.output, "dim")

    async def summary(self, conversation: Conversation, turn: Turn, usage: TraceUsage) -> None:
        self._print("(the agent summarised itself and goes on from its notes)", "dim")

    def _print(self, text: str, style: str) -> None:
        self._console.print(visible(text), style=style, markup=False, highlight=False)


def chat_command(run_folder: Path, task: str | None, folder: Path | None, stage: str | None, yes: bool) -> int:
    paths = RunPaths(run_folder.resolve())
    if not paths.recipe.is_file():
        raise LineageError(f"{run_folder} is not a run folder: it has no recipe.toml; train one with `etude run`")
    name = stage or next((s for s in _STAGES if paths.model(s).exists()), None)
    if stage is not None and stage not in _STAGES:
        raise LineageError(f"there is no stage {stage!r}: expected one of {', '.join(_STAGES)}")
    if name is None or not paths.model(name).exists():
        raise LineageError(f"{run_folder} has no finished model of stage {stage or 'sft or rl'} yet")
    if folder is not None and not folder.is_dir():
        raise LineageError(f"{folder} is not a folder")
    recipe = load_recipe(paths.recipe)
    trained = partial(_trained, recipe, paths, name, _dtype_of(paths))
    # SIGTERM asks like Ctrl-C does: boxes and temporary folders go with the chat.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    asyncio.run(converse(recipe, trained, task, folder, yes=yes))
    return 0


def _dtype_of(paths: RunPaths) -> str:
    compute = LineageState.load(paths.lineage).compute
    if "dtype_name" not in compute:
        raise LineageError(
            f"{paths.lineage} does not say in which dtype the run computes (compute.dtype_name): restore the file, or "
            "give the `etude run` command of this run again"
        )
    return str(compute["dtype_name"])


def _trained(recipe: Recipe, paths: RunPaths, stage: str, dtype: str, stack: AsyncExitStack) -> Policy:
    from etude.engine.service import EngineService

    form = format_of(recipe.harness, paths.tokenizer)
    alone = recipe.engine.model_copy(update={"slots": 1})  # where drafts pay
    engine = EngineService(paths.model(stage), alone, dtype, 0)
    stack.push_async_callback(engine.shutdown)
    sampling = TokenSampling(recipe.engine.context, temperature=0.0)
    schemas = session_schemas(recipe.harness)
    return TokenPolicy(engine, form, schemas, sampling, TraceBuilder(), conversation="chat")


async def converse(
    recipe: Recipe, open_policy: OpenPolicy, task: str | None, folder: Path | None, *, yes: bool
) -> None:
    """Task after task until an empty one. A change reaches the folder when the user has seen it and said yes, or at
    once with `yes`, which ends after one task."""
    console = Console()
    async with AsyncExitStack() as stack:
        if folder is None:
            folder = write_sample(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="etude-sample-"))))
            task = task or SAMPLE_TASK
            console.print(f"a sample repository: {', '.join(sorted(p.name for p in folder.iterdir()))}", style="dim")
        boxes = stack.enter_context(temporary_store("etude-chat-"))
        sandboxes = open_sandboxes(beside(recipe.sandbox), boxes)
        stack.push_async_callback(sandboxes.close)
        policy = open_policy(stack)
        session = ChatSession(folder, policy, recipe.harness, recipe.sandbox, sandboxes, observer=Show(console))
        await stack.enter_async_context(session)
        while text := task or _ask("task (empty to leave): "):
            task = None
            console.print(visible(text), style="bold", markup=False)
            outcome = await session.run(text)
            why = f": {visible(outcome.error)}" if outcome.error else ""
            console.print(f"({outcome.stop}{why}, {outcome.usage.turns} turns)", style="dim", markup=False)
            await _offer(session, console, yes)
            if yes:
                break


async def _offer(session: ChatSession, console: Console, yes: bool) -> None:
    for path in await session.left_out():
        console.print(f"{visible(path)} became too large to be read: it is left out", style="red", markup=False)
    diff = await session.diff()
    if not diff:
        console.print("nothing was changed", style="dim")
        return
    if console.is_terminal:
        # Wrapped, not cut: who says yes must have seen every character.
        console.print(Syntax(visible(diff.rstrip("\n")), "diff", background_color="default", word_wrap=True))
    else:
        print(visible(diff), end="")
    if yes or _ask("apply this change? [y/N] ").lower() in ("y", "yes"):
        console.print(f"applied to {visible(', '.join(await session.apply()))}", markup=False)
    else:
        console.print("left as it was", style="dim")


def visible(text: str) -> str:
    """With a picture for each control character: what a file or a command says must not move the cursor over what the
    user is asked to agree to."""
    return text.translate(_CONTROLS)


def _ask(prompt: str) -> str:
    """Empty at the end of the input.

    Asked on the loop's own thread, with Python's own answer to Ctrl-C: a thread that waits for a line can be ended by
    nothing but that line, and nothing else is going on while the user thinks.
    """
    kept = signal.signal(signal.SIGINT, signal.default_int_handler)
    print(prompt, end="", flush=True)  # input() itself would ask on stderr
    try:
        # A signal that comes just before a read begins would wait for the line too, so the read begins when there is
        # one. At a terminal only, which gives one line at a time: of a pipe, the next may be in a buffer already.
        while sys.stdin.isatty() and not select.select([sys.stdin], [], [], _WAKE_SECONDS)[0]:
            pass
        return input().strip()
    except EOFError:
        print()
        return ""
    finally:
        signal.signal(signal.SIGINT, kept)
