"""A chat session: the agent works on a copy-on-write view of the user's folder until `apply` writes its changes.

Invariant of sessions without `permissions`: only `apply` writes the user's files. It writes only changes that `diff`
shows, and only to files that still have the contents that the agent started from. With `permissions` there is no view:
the agent works in the folder itself, and each change needs the user's permission.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from importlib import resources
from pathlib import Path
from types import TracebackType

from etude.harness.context.git_facts import git_status, recent_files
from etude.harness.context.prompt_facts import Surroundings, collect_facts, host_system
from etude.harness.editing.apply import ApplyConflict, write_changes
from etude.harness.editing.diff import binary_changes, is_source, unified_diff
from etude.harness.external_services import ExternalServices
from etude.harness.from_recipe import budgets_of, limits_text, profile_of, tool_limits
from etude.harness.loop import Observer, run_agent
from etude.harness.outcome import Outcome
from etude.harness.permissions import Permissions
from etude.harness.policy import Policy
from etude.harness.sessions.log import SessionLog
from etude.harness.sessions.record import SessionRecord
from etude.harness.sessions.replay import REBASED, SavedSession
from etude.harness.toolbox import Toolbox
from etude.harness.workspaces.box_runner import MAX_READ_BYTES, MAX_READ_FILES, lazy_workspace
from etude.harness.workspaces.folder_files import FolderFiles, differing, pinned
from etude.harness.workspaces.folder_grep import searcher_of
from etude.harness.workspaces.large_folder import FolderRunner
from etude.harness.workspaces.user_folder import FolderWorkspace
from etude.harness.workspaces.workspace import TOO_LARGE, WORKDIR, OverlayWorkspace
from etude.recipe.acting import HarnessRecipe, SandboxRecipe
from etude.sandbox import limits_of
from etude.sandbox.contract import Box, BoxSpec, Sandboxes
from etude.trace.conversation.messages import Conversation, Message, Role
from etude.trace.trace import StopCause, TraceUsage

ON_THE_HOST = "commands run on the user's own machine, in the user's own files; the user is asked before each change"
"""Line of the system prompt, for an agent that works in the user's folder itself."""


class ChatSession:
    """A conversation between a user and the agent about one folder.

    Use `async with ChatSession(...) as session`, then `run` for each request, `diff` to see the changes, and `apply` to
    write them. `policy` must offer the tools of `session_schemas(harness)` to the model. Without `sandboxes` the agent
    has no shell.
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
        permissions: Permissions | None = None,
        outside: ExternalServices | None = None,
    ) -> None:
        """`record` saves the session while it runs. `saved` is an earlier session to resume, whose own record is then
        continued. With `permissions`, commands run on the host in the folder, and `sandboxes` are not used."""
        self.folder = folder
        self.conversation: Conversation | None = saved.conversation if saved else None
        self._policy = policy
        self._harness = harness
        self._profile = profile_of(harness)
        self._sandboxes = sandboxes
        self._sandbox = sandbox
        self._observer = observer or Observer()
        self._saved = saved
        self._record = saved.resume_record() if saved else record
        if self._record is not None:
            self._record.follow(policy)
        self._workspace: OverlayWorkspace | None = None
        self._toolbox: Toolbox | None = None
        self._permissions = permissions
        self._outside = outside
        self._before: Mapping[str, bytes] | None = None
        """The contents of all files when the last request began."""
        self._note = _reverted_note(saved.reverted) if saved else ""
        """Text about reverted changes, which is put before the next request."""

    async def __aenter__(self) -> ChatSession:
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _open(self) -> OverlayWorkspace:
        if self._workspace is None:
            workspace = await self._place()
            limits = tool_limits(self._sandbox, strict=self._harness.strict)
            self._toolbox = Toolbox(self._profile.schemas(), workspace, limits, self._profile, outside=self._outside)
            if self._saved is not None:
                await _restore(workspace, self._saved)
                self._toolbox.carry(self._saved.state)
            self._workspace = workspace
        return self._workspace

    async def _place(self) -> OverlayWorkspace:
        if self._permissions is not None:
            return await asyncio.to_thread(FolderWorkspace, self.folder, self._permissions)
        files = await asyncio.to_thread(FolderFiles, self.folder)
        return await _view(files, self._sandboxes, self._sandbox)

    @property
    def place(self) -> Path | None:
        """Folder that the session is recorded in, if it is recorded."""
        return self._record.folder if self._record is not None else None

    def contents(self) -> Mapping[str, bytes]:
        """Return the current files. If two calls return the same object, no file has changed in between."""
        return self._workspace.contents() if self._workspace is not None else {}

    @property
    def todo(self) -> list[str]:
        return list(self._toolbox.todo) if self._toolbox else []

    @property
    def interrupted(self) -> bool:
        """Whether the saved session was killed during a request: call `resume` before the next `run`."""
        return self._saved is not None and self.conversation is not None and not self._saved.stop

    @property
    def unfinished(self) -> bool:
        """Whether `resume` can continue the last request: a kill, the user, the wall clock or infrastructure ended
        it."""
        ended = self._saved.stop if self._saved is not None else ""
        return self.interrupted or (ended not in ("", REBASED) and StopCause(ended).ours)

    async def run(self, text: str) -> Outcome:
        """Run one request. Later requests continue the same conversation; each has its own budgets."""
        workspace = await self._open()
        text, self._note = self._note + text, ""
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

    async def resume(self) -> Outcome:
        """Resume the unfinished request after its last complete turn, with the rest of its budgets."""
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
        self._before = workspace.contents()
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
        system, limits = "", limits_text(self._sandbox) if self._sandboxes else ""
        if self._permissions is not None:
            system, limits = host_system(), ON_THE_HOST
        return await collect_facts(
            workspace,
            self._policy.count,
            system=system,
            limits=limits,
            status=await git_status(self.folder),
            recent=await recent_files(self.folder),
            commands=self._sandboxes is not None and self._permissions is None,
        )

    async def diff(self) -> str:
        """Return the diff of all changes that `apply` would write; of files that are not text, only the names."""
        workspace = await self._open()
        before, after = _sides(workspace, _known(workspace.changed()))
        return unified_diff(before, after) + binary_changes(before, after)

    async def changes(self) -> dict[str, str]:
        """Return the parts of `diff` by path."""
        workspace = await self._open()
        shown = {}
        for path, data in _known(workspace.changed()).items():
            before, after = _sides(workspace, {path: data})
            shown[path] = unified_diff(before, after) + binary_changes(before, after)
        return shown

    async def left_out(self) -> list[str]:
        """Return the changed files that are too large to read, which `apply` skips."""
        changed = (await self._open()).changed()
        return sorted(changed.keys() - _known(changed).keys())

    async def apply(self, paths: Collection[str] | None = None) -> list[str]:
        """Write all changes, or those of the given files, and return their paths. Later diffs start from the written
        files. If the agent works in the folder itself, the changes are only recorded as accepted."""
        workspace = await self._open()
        changed = _chosen(_known(workspace.changed()), paths)
        if not isinstance(workspace, FolderWorkspace):
            await asyncio.to_thread(write_changes, self.folder, workspace.start, changed)
            if self._before is not None:
                self._before = pinned(self._before, changed)
        workspace.rebase(changed)
        if self._record is not None:
            self._record.signal("edits_accepted", files=list(changed))
        return list(changed)

    async def refuse(self) -> None:
        """Record that the user rejects the changes. The agent's view of the folder still contains them."""
        if self._record is not None:
            self._record.signal("edits_rejected", files=list(_known((await self._open()).changed())))

    def agree_to_training(self) -> None:
        """Record in a resumed session, too, the consent of a user who has agreed to training on all sessions. Nothing
        is recorded if the session has a consent already, or if the user has answered the question for it."""
        saved = self._saved
        if self._record is not None and saved is not None and not saved.consent and saved.training_answer is None:
            self._record.signal("consent", given=True)

    async def revert(self, paths: Collection[str] | None = None) -> list[str]:
        """Restore the original or last applied contents of all changed files, or of the given ones. The agent is told
        with the next request. Raises ApplyConflict if the agent works in the folder itself and the user has changed a
        file after it."""
        workspace = await self._open()
        changed = _chosen(workspace.changed(), paths)
        await self._put_back(workspace, {path: workspace.start.get(path) for path in changed})
        return list(changed)

    async def undo(self) -> list[str]:
        """Revert the changes that the agent made in the last request, and return their paths."""
        workspace = await self._open()
        if self._before is None:
            return []
        before = self._before
        paths = differing(before, workspace.contents())
        if isinstance(workspace, FolderWorkspace):
            paths = [path for path in paths if path in workspace.left]
        paths = [path for path in paths if is_source(path)]
        await self._put_back(workspace, {path: before.get(path) for path in paths})
        return paths

    async def _put_back(self, workspace: OverlayWorkspace, files: Mapping[str, bytes | None]) -> None:
        if isinstance(workspace, FolderWorkspace):
            await workspace.put_back(files)
        else:
            for path, data in files.items():
                await (workspace.delete(path) if data is None else workspace.write(path, data))
        if files:
            self._note += _reverted_note(files)
            if self._record is not None:
                self._record.signal("edits_rejected", files=sorted(files))
                self._record.put_back(workspace.sides())

    async def close(self) -> None:
        if self._workspace is not None:
            await self._workspace.close()
            self._workspace = None
        if self._record is not None:
            self._record.close()


async def _view(files: FolderFiles, sandboxes: Sandboxes | None, recipe: SandboxRecipe) -> OverlayWorkspace:
    """Create a copy-on-write view of the folder, whose commands run in a box; without sandboxes it has no shell."""
    searcher = searcher_of(files)
    if sandboxes is None:
        return OverlayWorkspace(files, searcher=searcher)

    async def open_box(image: str) -> Box:
        return await sandboxes.create(BoxSpec(image, workdir=WORKDIR, limits=limits_of(recipe), name="chat"))

    if len(files) > MAX_READ_FILES or files.size() > MAX_READ_BYTES:
        return OverlayWorkspace(files, FolderRunner(files, sandboxes, open_box), searcher=searcher)
    await asyncio.to_thread(files.keep_all)
    image = await sandboxes.add_image(dict(files), workdir=WORKDIR)
    return lazy_workspace(image, files, lambda: open_box(image), searcher=searcher)


async def _restore(workspace: OverlayWorkspace, saved: SavedSession) -> None:
    """Apply the saved session's changes to the workspace.

    If the workspace is a copy-on-write view, raises ApplyConflict if a changed file in the folder has neither its
    original contents nor those of the session. If it is the folder itself, nothing is written, and changes that the
    folder no longer contains are ignored.
    """
    changed = saved.changed()
    if isinstance(workspace, FolderWorkspace):
        workspace.adopt_changes(changed)
        return
    moved = [path for path, sides in changed.items() if workspace.start.get(path) not in sides]
    if moved:
        raise ApplyConflict(
            f"changed since the session began: {', '.join(moved)}; restore them to resume it, or begin a new one"
        )
    for path, (_, now) in changed.items():
        if workspace.start.get(path) != now:
            await (workspace.delete(path) if now is None else workspace.write(path, now))


def _reverted_note(paths: Collection[str]) -> str:
    return f"(The user took back your changes to {', '.join(sorted(paths))}.)\n\n" if paths else ""


def _sides(
    workspace: OverlayWorkspace, changed: Mapping[str, bytes | None]
) -> tuple[dict[str, bytes], dict[str, bytes]]:
    before = {path: workspace.start[path] for path in changed if path in workspace.start}
    return before, {path: data for path, data in changed.items() if data is not None}


def _chosen(changed: Mapping[str, bytes | None], paths: Collection[str] | None) -> dict[str, bytes | None]:
    return {path: data for path, data in changed.items() if paths is None or path in paths}


def _known(changed: Mapping[str, bytes | None]) -> dict[str, bytes | None]:
    return {path: data for path, data in changed.items() if data != TOO_LARGE}


def write_sample(folder: Path) -> Path:
    """Write the sample micro-repository (two modules and a failing check) into a folder. It resembles the training
    tasks of `recipes/tiny.toml`, so that an agent trained by this recipe can solve it."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in (resources.files("etude.harness") / "sample").iterdir():
        if file.name.endswith(".txt"):
            (folder / file.name.removesuffix(".txt")).write_bytes(file.read_bytes())
    return folder
