"""The Textual app: one session, with its keys and commands.

Invariants: the agent runs in one Textual worker, which an interrupt cancels wherever it waits (for the model, a command
or an answer). An interrupt loses no work, and the next request continues the session. The app exits only after the
worker has stopped.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Footer, Static
from textual.worker import Worker

from etude.cli.agent_setup import Front, Where, sessions_of
from etude.cli.errors import explained
from etude.cli.screen.changes import ChangesScreen, HelpScreen, PickScreen
from etude.cli.screen.entry import COMMANDS, Entry, completions
from etude.cli.screen.formatting import amount, counted, period
from etude.cli.screen.live_turn import Stage, made
from etude.cli.screen.prompts import Approval, Prompt, Question
from etude.cli.visible import visible
from etude.cli.wording import STOPS, count, short_folder
from etude.harness import (
    Answer,
    ChatSession,
    Conversation,
    Message,
    Observer,
    Outcome,
    Piece,
    Policy,
    RequestedAction,
    ToolCall,
    Turn,
    session_schemas,
)
from etude.harness.workspaces.folder_files import put
from etude.recipe.acting import HarnessRecipe
from etude.trace import StopCause, ToolEvent, TraceUsage

T = TypeVar("T")
_TICK_SECONDS = 0.5
_ROOMY = 30
"""Minimum height of the screen, in lines, for the todo list to stay visible while a prompt is shown."""
_TODO_SIGNS = {"-": "☐", ">": "▶", "x": "☑"}


class ChatApp(App[str]):
    """The app of one session. Call `begin` with the session, then run the app. Its result is the name of the session to
    resume next, if any."""

    TITLE = "etude chat"
    CSS_PATH = "style.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS = [
        Binding("escape", "interrupt", "interrupt"),
        Binding("ctrl+c", "stop", "stop, leave", priority=True),
        Binding("ctrl+g", "command('/diff')", "changes", priority=True),
        Binding("ctrl+o", "unfold", "unfold", priority=True),
        Binding("f1", "command('/help')", "help"),
        Binding("pageup", "page(-1)", show=False, priority=True),
        Binding("pagedown", "page(1)", show=False, priority=True),
    ]

    def __init__(self, front: Front, where: Where, task: str | None = None) -> None:
        super().__init__(ansi_color=True)
        self.theme = "ansi-light" if _light() else "ansi-dark"
        self.observer = _Watcher(self, front.harness)
        self._front, self._where, self._first = front, where, task
        self._worker: Worker[None] | None = None
        self._begun = 0.0
        self._usage = TraceUsage()
        self._total = 0
        """Number of tokens that the model sampled for the session's earlier requests."""
        self._turns = self._held = 0
        """`_turns` counts the turns of the current request, `_held` the tokens in the model's context."""
        self._waiting: list[str] = []
        """Requests that the user sent while the agent worked. They run once it is done."""
        self._one_prompt = asyncio.Lock()
        self._asking = False
        self._leaving = False
        self._open = False
        # Kept as attributes, since a query searches only the topmost screen.
        self.stage, self.entry = Stage(), Entry()
        self._todo, self._matches = Static(id="todo", markup=False), Static(id="matches", markup=False)
        self._dock, self._status = Vertical(id="dock"), Static(id="status", markup=False)

        self._pieces: asyncio.Queue[Piece] = asyncio.Queue()

    def begin(self, session: ChatSession, policy: Policy) -> None:
        self.session, self.policy = session, policy

    def compose(self) -> ComposeResult:
        yield self.stage
        yield self._todo
        yield self._dock
        yield self._matches
        yield self.entry
        yield self._status
        yield Footer(compact=True, show_command_palette=False)

    async def on_mount(self) -> None:
        self.entry.focus()
        self.set_interval(_TICK_SECONDS, self._tick)
        place = "in the folder itself, each change and command after your yes" if self._where.rules.here else (
            "on a copy; /apply writes changes into the folder"
        )  # fmt: skip
        await self.stage.note(f"{self._front.model} works {place}: {self._where.folder.resolve()}")
        if self.session.conversation is not None:
            await self.stage.show_saved(self.session.conversation)
            for message in self.session.conversation.messages[1:]:
                if message.turn is None and message.call is None:
                    self.entry.remember(message.text)
        self.show_todo()
        self._tick()
        self.run_worker(self._show_pieces())
        if self.session.interrupted:
            await self.stage.note("the session ended in the middle of a request and continues it; Esc interrupts")
            self._start(self.session.resume)
        elif self._first is not None:
            self.entry.remember(self._first)
            await self._request(self._first)

    # What the user does

    async def on_entry_submitted(self, event: Entry.Submitted) -> None:
        self._leaving = False
        text = event.text
        if text.split()[0] in COMMANDS:
            self.run_worker(self._command(text.split()[0]))
        elif text.startswith("/") and "\n" not in text and "/" not in text[1:].split()[0]:
            await self.stage.note(f"there is no command {text.split()[0]}: {', '.join(COMMANDS)}")
        elif self._worker is not None:
            self._waiting.append(text)
            self._tick()
        else:
            await self._request(text)

    def on_text_area_changed(self) -> None:
        matches = completions(self.entry.text)
        self._matches.update(Content("\n".join(f"{name:10}{COMMANDS[name]}" for name in matches)))
        self._matches.set_class(bool(matches), "filled")

    async def action_interrupt(self) -> None:
        if self._worker is not None:
            self._worker.cancel()

    async def action_stop(self) -> None:
        if selected := self.screen.get_selected_text():
            self.copy_to_clipboard(selected)
            self.screen.clear_selection()
        elif self._leaving:
            await self._leave(None)
        else:
            self._leaving = True
            await self.action_interrupt()
            self.notify("Ctrl-C once more leaves", timeout=3)
            self.set_timer(3, self._stay)

    def _stay(self) -> None:
        self._leaving = False

    def action_command(self, name: str) -> None:
        self.run_worker(self._command(name))

    def action_unfold(self) -> None:
        self._open = not self._open
        self.stage.unfold(self._open)

    def action_page(self, pages: int) -> None:
        if self._asking and isinstance(self.focused, Prompt):
            self.focused.scroll(pages)
        elif len(self.screen_stack) == 1:
            self.stage.scroll_relative(y=pages * max(1, self.stage.size.height - 2), animate=False)

    def on_resize(self, event: events.Resize) -> None:
        for prompt in self._dock.query(Prompt):
            prompt.fit(*event.size)

    async def _command(self, name: str) -> None:
        if len(self.screen_stack) > 1:
            return
        if self._worker is not None and name not in ("/help", "/quit"):
            await self.stage.note(f"{name} works only while the agent is not at work: wait, or interrupt it (Esc)")
            return
        await self._guarded(self._carry_out(name))

    async def _carry_out(self, name: str) -> None:
        match name:
            case "/diff":
                await self._look()
            case "/apply":
                await self._settle(dict.fromkeys(await self.session.changes(), True))
            case "/undo":
                paths = await self.session.undo()
                await self.stage.note(f"took back {', '.join(paths)}" if paths else "nothing to take back")
            case "/resume":
                await self._pick()
            case "/help":
                await self.push_screen_wait(HelpScreen())
            case _:
                await self._leave(None)

    async def _look(self) -> None:
        changes = await self.session.changes()
        if not changes:
            await self.stage.note("nothing is changed")
        elif choice := await self.push_screen_wait(ChangesScreen(changes, self._where.rules.here)):
            await self._settle(choice)

    async def _settle(self, choice: dict[str, bool]) -> None:
        keep = [path for path, kept in choice.items() if kept]
        gone = [path for path, kept in choice.items() if not kept]
        if gone:
            await self.stage.note(f"took back {', '.join(await self.session.revert(gone))}")
        if keep:
            done = "kept" if self._where.rules.here else "applied to"
            await self.stage.note(f"{done} {', '.join(await self.session.apply(keep))}")
        if not choice:
            await self.stage.note("nothing is changed")
        for path in await self.session.left_out():
            await self.stage.note(f"{path} became too large to be read: it is left out", "problem")

    async def _pick(self) -> None:
        mine = self.session.place
        names = []
        for saved in sessions_of(self._where.sessions, self._where.folder) if self._where.sessions else ():
            if saved.folder != mine and bool(saved.about.get("here")) == self._where.rules.here and saved.conversation:
                names.append((saved.folder.name, " ".join(saved.conversation.task.split())[:80]))
        if not names:
            await self.stage.note("this folder has no other session")
        elif name := await self.push_screen_wait(PickScreen("Go on with", names[:50])):
            await self._leave(name)

    async def _leave(self, session: str | None) -> None:
        if self._worker is not None:
            self._waiting.clear()
            self._worker.cancel()
            while self._worker is not None:  # noqa: ASYNC110 - what it holds must be closed before its session is
                await asyncio.sleep(0.01)
        self.exit(session)

    # What the agent does

    async def _request(self, text: str) -> None:
        await self.stage.asked(text)
        self._start(lambda: self.session.run(text))

    def _start(self, run: Callable[[], Coroutine[Any, Any, Outcome]]) -> None:
        self._begun, self._turns = time.monotonic(), 0
        self._worker = self.run_worker(self._work(run))
        self._tick()

    async def _work(self, run: Callable[[], Coroutine[Any, Any, Outcome]]) -> None:
        try:
            await self._guarded(self._run(run))
        except asyncio.CancelledError:
            await self.stage.stopped()
            await self.stage.note("interrupted; what it did stays, and your next message continues from here")
        finally:
            self._total += self._usage.sampled_tokens
            self._usage = TraceUsage()
            self._worker = None
            self._tick()
        if self._waiting:
            await self._request(self._waiting.pop(0))

    async def _run(self, run: Callable[[], Coroutine[Any, Any, Outcome]]) -> None:
        outcome = await run()
        await self.stage.stopped()
        why = f": {outcome.error}" if outcome.error else ""
        if outcome.stop not in (StopCause.FINISHED, StopCause.REPLIED):
            await self.stage.note(f"{STOPS[outcome.stop]}{why}", "problem" if why else "note")
        elif outcome.stop is StopCause.FINISHED and outcome.final_text.strip():
            await self.stage.note(outcome.final_text.strip())
        changes = await self.session.changes()
        if changes and not self._where.rules.here:
            lines = counted("".join(changes.values()))
            await self.stage.note(
                f"{count(len(changes), 'file')} changed ({lines}), on the copy: Ctrl-G looks, /apply writes"
            )

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`, and show the message of a user's mistake or a known failure. Bugs are raised."""
        try:
            await work
        except Exception as error:
            told = explained(error)
            if told is None:
                raise
            await self.stage.stopped()
            await self.stage.note(told[0], "problem")

    def piece(self, piece: Piece) -> None:
        self._pieces.put_nowait(piece)

    async def _show_pieces(self) -> None:
        while True:
            await self.stage.piece(await self._pieces.get())
            self._pieces.task_done()

    async def all_pieces(self) -> None:
        """Wait until all streamed pieces received so far are shown."""
        await self._pieces.join()

    async def agree(self, wish: RequestedAction) -> Answer:
        return await self._prompted(lambda: Approval(wish))

    async def question(self, text: str) -> str:
        return await self._prompted(lambda: Question(text))

    async def _prompted(self, make: Callable[[], Prompt[T]]) -> T:
        async with self._one_prompt:
            prompt = make()
            self._asking = True
            try:
                await self._dock.mount(prompt)
                prompt.fit(*self.size)
                self._todo.set_class(self.size.height < _ROOMY, "pushed")
                self.bell()
                if not self.entry.text:
                    self.entry.display = False
                    prompt.where_focus_goes().focus()
                else:
                    self.notify("Tab to answer the agent", timeout=5)
                self._tick()
                return await prompt.answer
            finally:
                self._asking = False
                self._todo.remove_class("pushed")
                await prompt.remove()
                self.entry.display = True
                self.entry.focus()

    # The status line and the todo list

    def took_turn(self) -> None:
        self._turns += 1
        self._tick()

    def counts(self, usage: TraceUsage, conversation: Conversation | None) -> None:
        self._usage = usage
        if conversation is not None:
            self._held = self.policy.tokens(conversation)
        self.show_todo()
        self._tick()

    def show_todo(self) -> None:
        items = [item.partition(" ") for item in self.session.todo]
        lines = [f"{_TODO_SIGNS.get(mark, mark)} {visible(text)}" for mark, _, text in items]
        self._todo.update(Content("\n".join(lines)))
        self._todo.set_class(bool(lines), "filled")

    def _tick(self) -> None:
        self.stage.tick()
        state = "ready"
        if self._asking:
            state = "waiting for you"
        elif self._worker is not None:
            state = f"working {period(time.monotonic() - self._begun)}"
        if self._waiting:
            state += f", {len(self._waiting)} to follow"
        parts = [state, "here" if self._where.rules.here else "on a copy", visible(self._front.model)]
        if self._worker is not None and self._turns:
            parts.append(f"turn {self._turns}")
        if sampled := self._total + self._usage.sampled_tokens:
            parts.append(f"{amount(sampled)} tokens")
        if self._held:
            trigger = self._front.harness.summary_trigger
            parts.append(f"context {amount(self._held)}" + (f"/{amount(trigger)}" if trigger else ""))
        parts.append(short_folder(self._where.folder.resolve()))
        self._status.update(Content(" · ".join(parts)))


class _Watcher(Observer):
    """Observer that shows on the screen what the agent loop reports."""

    def __init__(self, app: ChatApp, harness: HarnessRecipe) -> None:
        self._app = app
        self._schemas = {schema.name: schema for schema in session_schemas(harness)}
        self._files: Mapping[str, bytes] = {}
        """The workspace's files at the start of the turn, with those changes that were already shown."""
        self._calls: list[ToolCall] = []
        self._conversation: Conversation | None = None

    async def turn(self, conversation: Conversation, turn: Turn) -> None:
        self._conversation = conversation
        self._files, self._calls = self._app.session.contents(), list(turn.calls)
        await self._app.all_pieces()
        await self._app.stage.turn(turn)
        self._app.took_turn()

    async def tool(self, event: ToolEvent) -> None:
        self._app.stage.tool(event, self._made_by(self._calls.pop(0)))
        self._app.show_todo()

    def _made_by(self, call: ToolCall) -> str:
        """Return the diff of what this call changed. Calls may run at the same time, so a call that names a path gets
        only that file's change."""
        schema, before, now = self._schemas.get(call.name), self._files, self._app.session.contents()
        if schema is None or schema.access in ("none", "read"):
            return ""
        path = (call.arguments or {}).get(schema.place) if schema.place else None
        if isinstance(path, str):
            data = now.get(path)
            now = before if data == before.get(path) else put(before, path, data)
        self._files = now
        return made(before, now)

    async def answered(
        self, turn: Turn, tools: Sequence[ToolEvent], told: Sequence[Message], usage: TraceUsage
    ) -> None:
        self._app.counts(usage, self._conversation)

    async def summary(self, conversation: Conversation, turn: Turn, usage: TraceUsage) -> None:
        self._conversation = conversation
        self._app.counts(usage, None)
        await self._app.stage.note("the agent summarised its conversation and continues from the summary")


def _light() -> bool:
    """Whether the terminal reports a light background in COLORFGBG. Only some terminals set it."""
    return os.environ.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15")
