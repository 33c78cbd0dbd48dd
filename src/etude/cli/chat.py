"""etude chat: the agent just trained, through the harness that trained it, on a copy-on-write view of a folder."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from rich.console import Console
from rich.syntax import Syntax

from etude.harness import (
    ChatSession,
    Conversation,
    Observer,
    TokenPolicy,
    TokenSampling,
    Turn,
    session_schemas,
    write_sample,
)
from etude.journal import RunPaths
from etude.lineage import LineageError, LineageState
from etude.recipe import Recipe, load_recipe
from etude.sandbox import open_sandboxes
from etude.text import CompactFormat, Tokenizer
from etude.trace import ToolEvent
from etude.trace.builder import TraceBuilder

_STAGES = ("sft", "rl")
SAMPLE_TASK = "fix the failing check"


class Show(Observer):
    """Prints what the agent does as it does it."""

    def __init__(self, console: Console) -> None:
        self._console = console

    async def turn(self, conversation: Conversation, turn: Turn) -> None:
        for text in (turn.thinking, turn.text):
            if text.strip():
                self._console.print(text.strip(), style="italic", markup=False)

    async def tool(self, event: ToolEvent) -> None:
        mark = "cyan" if event.ok else "red"
        self._console.print(f"> {event.arguments}", style=mark, markup=False, highlight=False)
        if event.output:
            self._console.print(event.output, style="dim", markup=False, highlight=False)

    async def summary(self, conversation: Conversation) -> None:
        self._console.print("(the agent summarised itself and goes on from its notes)", style="dim")


def chat_command(run_folder: Path, task: str | None, folder: Path | None, stage: str | None, yes: bool) -> int:
    paths = RunPaths(run_folder.resolve())
    if not paths.recipe.is_file():
        raise LineageError(f"{run_folder} is not a run folder: it has no recipe.toml; train one with `etude run`")
    name = stage or next((s for s in ("rl", "sft") if paths.model(s).exists()), None)
    if stage is not None and stage not in _STAGES:
        raise LineageError(f"there is no stage {stage!r}: expected one of {', '.join(_STAGES)}")
    if name is None or not paths.model(name).exists():
        raise LineageError(f"{run_folder} has no finished model of stage {stage or 'sft or rl'} yet")
    if folder is not None and not folder.is_dir():
        raise LineageError(f"{folder} is not a folder")
    return asyncio.run(_chat(load_recipe(paths.recipe), paths, name, task, folder, yes))


async def _chat(recipe: Recipe, paths: RunPaths, stage: str, task: str | None, folder: Path | None, yes: bool) -> int:
    from etude.engine.service import EngineService

    console = Console()
    async with AsyncExitStack() as stack:
        if folder is None:
            folder = write_sample(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="etude-sample-"))))
            task = task or SAMPLE_TASK
            console.print(f"a sample repository: {', '.join(sorted(p.name for p in folder.iterdir()))}", style="dim")
        boxes = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="etude-chat-")))
        sandboxes = open_sandboxes(recipe.sandbox, boxes)
        stack.push_async_callback(sandboxes.close)
        dtype = LineageState.load(paths.lineage).compute["dtype_name"]
        engine = EngineService(paths.model(stage), recipe.engine, dtype, 0)
        stack.push_async_callback(engine.shutdown)
        policy = TokenPolicy(
            engine,
            CompactFormat(Tokenizer.load(paths.tokenizer)),
            session_schemas(recipe.harness),
            TokenSampling(recipe.engine.context, temperature=0.0),
            TraceBuilder(),
            conversation="chat",
        )
        session = ChatSession(folder, policy, recipe.harness, recipe.sandbox, sandboxes, observer=Show(console))
        await stack.enter_async_context(session)
        while text := task or await _ask("task (empty to leave): "):
            task = None
            console.print(text, style="bold", markup=False)
            outcome = await session.run(text)
            console.print(f"({outcome.stop}, {outcome.usage.turns} turns)", style="dim")
            await _offer(session, console, yes)
            if yes:
                break
    return 0


async def _offer(session: ChatSession, console: Console, yes: bool) -> None:
    diff = await session.diff()
    if not diff:
        console.print("nothing was changed", style="dim")
        return
    console.print(Syntax(diff, "diff", background_color="default"))
    if yes or (await _ask("apply this change? [y/N] ")).strip().lower() in ("y", "yes"):
        console.print(f"applied to {', '.join(await session.apply())}")
    else:
        console.print("left as it was", style="dim")


async def _ask(prompt: str) -> str:
    """Empty at the end of the input."""
    try:
        return await asyncio.to_thread(input, prompt)
    except EOFError:
        return ""
