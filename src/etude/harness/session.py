"""A chat session: the agent works on a copy-on-write view of a folder; nothing reaches the folder before `apply`.

Invariant: the user's files are written by `apply` alone, only where `diff` showed a change, and only if they are still
what the agent started from.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path, PurePath
from types import TracebackType

from etude.harness.diff import binary_changes, unified_diff
from etude.harness.folder import FolderFiles
from etude.harness.folder_search import searcher_of
from etude.harness.large_folder import FolderRunner
from etude.harness.loop import Observer, run_agent
from etude.harness.outcome import Outcome
from etude.harness.outside import Outside
from etude.harness.plan import budgets_of, profile_of, told_limits, tool_limits
from etude.harness.policy import Conversation, Message, Policy, Role
from etude.harness.runner import MAX_READ_BYTES, MAX_READ_FILES, hold_for_commands, lazy_workspace
from etude.harness.sessions.log import SessionLog
from etude.harness.sessions.record import SessionRecord
from etude.harness.sessions.replay import SavedSession
from etude.harness.surroundings import Surroundings, look_around
from etude.harness.toolbox import Toolbox
from etude.harness.workspace import TOO_LARGE, WORKDIR, OverlayWorkspace
from etude.recipe.acting import HarnessRecipe, SandboxRecipe
from etude.sandbox import limits_of
from etude.sandbox.contract import Box, BoxSpec, Sandboxes
from etude.trace.trace import StopCause, TraceUsage


class ApplyConflict(Exception):
    """Files changed under the session: they are named, and none was written."""


class ChatSession:
    """`async with ChatSession(...) as session`: `run` per request, `diff` to look, `apply` to keep.

    `policy` must have been made with `session_schemas(harness)`. Without `sandboxes` there is no shell.
    """

    def __init__(
        self,
        folder: Path,
        policy: Policy,
        harness: HarnessRecipe,
        sandbox: SandboxRecipe,
        sandboxes: Sandboxes | None = None,
        *,
        observer: Observer | None = None,
        record: SessionRecord | None = None,
        saved: SavedSession | None = None,
        outside: Outside | None = None,
    ) -> None:
        """`record` is written as the session goes on; `saved` is one that goes on here, with its own record."""
        self.folder = folder
        self.conversation: Conversation | None = saved.conversation if saved else None
        self._policy = policy
        self._harness = harness
        self._profile = profile_of(harness)
        self._sandboxes = sandboxes
        self._sandbox = sandbox
        self._observer = observer or Observer()
        self._saved = saved
        self._record = saved.go_on() if saved else record
        if self._record is not None:
            self._record.follow(policy)
        self._workspace: OverlayWorkspace | None = None
        self._toolbox: Toolbox | None = None
        self._outside = outside

    async def __aenter__(self) -> ChatSession:
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _open(self) -> OverlayWorkspace:
        if self._workspace is None:
            files = await asyncio.to_thread(FolderFiles, self.folder)
            workspace = await _view(files, self._sandboxes, self._sandbox)
            limits = tool_limits(self._sandbox, strict=self._harness.strict)
            self._toolbox = Toolbox(self._profile.schemas(), workspace, limits, self._profile, outside=self._outside)
            if self._saved is not None:
                await _restore(workspace, self._saved)
                self._toolbox.carry(self._saved.state)
            self._workspace = workspace
        return self._workspace

    @property
    def interrupted(self) -> bool:
        """It was killed while a request was being worked on: `go_on` before the next one."""
        return self._saved is not None and self.conversation is not None and not self._saved.stop

    @property
    def unfinished(self) -> bool:
        """A kill, the user, the clock or a failure of ours ended its last request: `go_on` goes on with it."""
        ended = self._saved.stop if self._saved is not None else ""
        return self.interrupted or (ended != "" and StopCause(ended).ours)

    async def run(self, text: str) -> Outcome:
        """One request; a later one goes on in the same conversation. Each has budgets of its own."""
        workspace = await self._open()
        if self.conversation is None:
            self.conversation = self._profile.open(text, "chat", await self._surroundings(workspace))
            if self._record is not None:
                self._record.opened(self.conversation)
        else:
            message = Message(Role.USER, text)
            self.conversation.messages.append(message)
            self.conversation.task = text
            if self._record is not None:
                self._record.asked(message)
        return await self._act(self.conversation, TraceUsage())

    async def go_on(self) -> Outcome:
        """The request that a session was working on when it was killed or cancelled, from its last whole turn, with
        what is left of its budgets."""
        assert self.unfinished, "nothing was interrupted"
        assert self._saved is not None
        assert self.conversation is not None
        await self._open()
        return await self._act(self.conversation, self._saved.usage)

    async def _act(self, conversation: Conversation, usage: TraceUsage) -> Outcome:
        workspace, toolbox, observer = await self._open(), self._toolbox, self._observer
        assert toolbox is not None
        if self._record is not None:
            observer = SessionLog(self._record, workspace, toolbox, self._observer)
        outcome = Outcome(conversation, usage=usage)
        budgets = budgets_of(self._harness)
        self._saved = None
        try:
            await run_agent(
                conversation, self._policy, toolbox, budgets, self._profile, observer=observer, outcome=outcome
            )
        finally:
            self.conversation = outcome.conversation
            if self._record is not None:
                self._record.stopped(outcome.stop.value, outcome.error)
        return outcome

    async def _surroundings(self, workspace: OverlayWorkspace) -> Surroundings | None:
        if not self._profile.facts:
            return None
        limits = told_limits(self._sandbox) if self._sandboxes else ""
        commands = self._sandboxes is not None
        return await look_around(workspace, self._policy.count, limits=limits, commands=commands)

    async def diff(self) -> str:
        """Everything that `apply` would write; of files that are no text it says only that they changed."""
        workspace = await self._open()
        changed = _known(workspace.changed())
        before = {path: workspace.start[path] for path in changed if path in workspace.start}
        after = {path: data for path, data in changed.items() if data is not None}
        return unified_diff(before, after) + binary_changes(before, after)

    async def left_out(self) -> list[str]:
        """Files that the agent made too large to be read: they are not applied."""
        changed = (await self._open()).changed()
        return sorted(changed.keys() - _known(changed).keys())

    async def apply(self) -> list[str]:
        """Writes the changes into the folder, and returns the paths. Later changes count from there."""
        workspace = await self._open()
        changed = _known(workspace.changed())
        await asyncio.to_thread(write_changes, self.folder, workspace.start, changed)
        workspace.rebase(changed)
        if self._record is not None:
            self._record.signal("edits_accepted", files=list(changed))
        return list(changed)

    async def refuse(self) -> None:
        """The user does not want the changes; they stay in the session's view."""
        if self._record is not None:
            self._record.signal("edits_rejected", files=list(_known((await self._open()).changed())))

    async def close(self) -> None:
        if self._workspace is not None:
            await self._workspace.close()
            self._workspace = None
        if self._record is not None:
            self._record.close()


async def _view(files: FolderFiles, sandboxes: Sandboxes | None, recipe: SandboxRecipe) -> OverlayWorkspace:
    searcher = searcher_of(files)
    if sandboxes is None:
        return OverlayWorkspace(files, searcher=searcher)

    async def open_box(image: str) -> Box:
        return await sandboxes.create(BoxSpec(image, workdir=WORKDIR, limits=limits_of(recipe), name="chat"))

    if len(files) > MAX_READ_FILES or files.size() > MAX_READ_BYTES:
        return OverlayWorkspace(files, FolderRunner(files, sandboxes, open_box), searcher=searcher)
    await asyncio.to_thread(hold_for_commands, files)
    image = await sandboxes.add_image(dict(files), workdir=WORKDIR)
    return lazy_workspace(image, files, lambda: open_box(image), searcher=searcher)


async def _restore(workspace: OverlayWorkspace, saved: SavedSession) -> None:
    """The files as the session had them; ApplyConflict if what it changed is not what it started from."""
    changed = saved.changed()
    moved = [path for path, pair in changed.items() if workspace.start.get(path) not in pair]
    if moved:
        raise ApplyConflict(
            f"changed since the session began: {', '.join(moved)}; put them back to go on with it, or begin another"
        )
    for path, (_, now) in changed.items():
        if workspace.start.get(path) != now:
            await (workspace.delete(path) if now is None else workspace.write(path, now))


def _known(changed: Mapping[str, bytes | None]) -> dict[str, bytes | None]:
    return {path: data for path, data in changed.items() if data != TOO_LARGE}


def write_changes(folder: Path, start: Mapping[str, bytes], changed: Mapping[str, bytes | None]) -> None:
    """All of them or, with ApplyConflict, none: each must still be what it was at the start."""
    moved = [path for path in changed if not _is_still(folder, path, start.get(path))]
    if moved:
        raise ApplyConflict(
            f"changed outside the session, so nothing was written: {', '.join(moved)}; start again from what is there"
        )
    aside: dict[str, Path] = {}
    try:
        # Beside their places first, all of them: a crash leaves each file old or new and whole, a full disk all old.
        for path, data in changed.items():
            if data is not None:
                aside[path] = _beside(folder / path, data)
        for path, data in changed.items():
            if data is None:
                (folder / path).unlink()
            else:
                aside.pop(path).replace(folder / path)
    finally:
        for new in aside.values():
            new.unlink(missing_ok=True)


def _beside(target: Path, data: bytes) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    mode = target.stat().st_mode if target.exists() else None
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as new:
        try:
            new.write(data)
            new.flush()
        except OSError:
            Path(new.name).unlink()
            raise
    written = Path(new.name)
    written.chmod(mode & 0o7777 if mode is not None else 0o644)
    return written


def _is_still(folder: Path, path: str, content: bytes | None) -> bool:
    """Is that what lies there?"""
    target = folder / path
    return not in_the_way(folder, path) and (target.read_bytes() if target.is_file() else None) == content


def in_the_way(folder: Path, path: str) -> str:
    """Why no file can be written there, or nothing: no link may lead out of the folder."""
    target = folder / path
    for place in [folder.joinpath(*parent.parts) for parent in PurePath(path).parents][:-1]:
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            return f"cannot be written: {place.relative_to(folder)} is no folder now"
    if target.is_symlink() or (target.exists() and not target.is_file()):
        return "is no file now"
    return ""


def write_sample(folder: Path) -> Path:
    """Writes the sample micro-repository (two modules, and a check that fails) into a folder. It is of the kind that
    `recipes/tiny.toml` trains on, so that so small an agent has a chance."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in (resources.files("etude.harness") / "sample").iterdir():
        if file.name.endswith(".txt"):
            (folder / file.name.removesuffix(".txt")).write_bytes(file.read_bytes())
    return folder
