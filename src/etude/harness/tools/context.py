"""What a tool gets of its run: the workspace, the limits, and what the agent has read and changed so far.

A tool is a function of a ToolContext and arguments to an Output; `harness/toolbox.py` calls it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from etude.harness.chunks import ChunkIndex
from etude.harness.context.profile import Profile
from etude.harness.external_services import Outside
from etude.harness.lints import Lints
from etude.harness.workspaces.workspace import AsksFirst, Workspace


@dataclass(frozen=True, slots=True)
class ToolLimits:
    command_seconds: float = 10.0
    """Time limit of one shell command, which has failed when it reaches it, unless the host gave it no time."""
    edits: int | None = None
    """Successful edits allowed in the whole run."""
    strict: bool = False
    """Strict checks: a file can be changed only after the agent has read it; an argument of `null` is an error instead
    of counting as left out; a patch must match exactly; and the lines that `read` is asked for must exist."""


class ToolProblem(Exception):
    """The call cannot be carried out; the text is the answer to the model."""


@dataclass(slots=True)
class Output:
    """A tool's output as lines, with which end to keep when it has to be cut."""

    lines: Sequence[str]
    keep_end: bool = False
    ok: bool = True
    valid: bool = True
    """False when the call itself was malformed: unknown tool, arguments that do not parse."""
    finished: bool = False
    """True if this call ends the run."""
    seconds: float = 0.0
    """How long a command ran, by the clock that enforces its time limit; 0 on a host that was short of CPU time."""
    reread: bool = False
    """True if the call read a file that was last read before a self-summary, so not yet in this context."""


class ToolContext:
    """One run's state that tools read and change, over one workspace."""

    def __init__(
        self,
        workspace: Workspace,
        limits: ToolLimits,
        profile: Profile,
        *,
        outside: Outside | None = None,
        after_edit: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`after_edit` is called after each change of a file by a tool, before anything else changes one."""
        self.workspace = workspace
        self.limits = limits
        self.say = profile.say
        self.edited: dict[str, int] = {}
        """Number of successful edits per file, in order of each file's first edit."""
        self.todo: list[str] = []
        self.jobs: list[tuple[int, str]] = []
        """Number and command of each background job that was still running when last checked."""
        self.lints = Lints()
        self.context = 0
        """Number of self-summaries so far, set by the loop."""
        self.outside = outside or Outside()
        self.chunk_index: ChunkIndex | None = None
        """The search index, created by the first search."""
        self._after_edit = after_edit
        self._shown: dict[str, bytes] = {}
        """Digest of each file's contents as the agent last saw them."""
        self._read: dict[str, int] = {}
        """The value of `context` when each file was last read, ordered by last read."""

    async def has_edited(self, path: str, data: bytes | None) -> None:
        """Record a change of a file; every tool that makes one calls this. `data` is None for a deleted file."""
        self.edited[path] = self.edited.get(path, 0) + 1
        self.has_shown(path, data)
        if data is None:
            self._read.pop(path, None)
        if self._after_edit is not None:
            await self._after_edit()

    def require_edits(self, files: int = 1) -> None:
        """ToolProblem if `files` more edits exceed the limit; every tool calls this before it changes files."""
        if self.limits.edits is not None and sum(self.edited.values()) + files > self.limits.edits:
            raise ToolProblem(self.say("no_edits_left"))

    async def agree(self, changes: Mapping[str, bytes | None]) -> None:
        """Ask the user about a set of changes, where the workspace asks. A tool that changes several files calls this
        before the first change, so that they become one question."""
        if isinstance(self.workspace, AsksFirst):
            await self.workspace.agree(changes)

    def has_shown(self, path: str, data: bytes | None) -> None:
        """Record the contents the agent has seen, by reading or writing the file."""
        if data is None:
            self._shown.pop(path, None)
        else:
            self._shown[path] = xxhash.xxh3_128_digest(data)

    def has_read(self, path: str, data: bytes) -> bool:
        """Record a read. Return True if the file was last read before a self-summary, so not yet in this context."""
        self.has_shown(path, data)
        before = self._read.pop(path, self.context)
        self._read[path] = self.context
        return before < self.context

    def open_files(self) -> list[str]:
        """Files that the agent has read and not deleted, last read last."""
        return list(self._read)

    def knows(self, path: str, data: bytes) -> bool:
        """Whether the file still has the contents that the agent saw. A file it never saw counts as known, since
        nothing it believes can be wrong, unless `strict` requires a read first."""
        shown = self._shown.get(path)
        return not self.limits.strict if shown is None else shown == xxhash.xxh3_128_digest(data)

    def require_known(self, path: str, data: bytes) -> None:
        """Raise ToolProblem unless the file still is what the agent saw."""
        if not self.knows(path, data):
            raise ToolProblem(self.say("stale", path=path))

    def carried(self) -> dict[str, Any]:
        """State as JSON that a resumed session needs; `carry` restores it."""
        shown = {path: digest.hex() for path, digest in self._shown.items()}
        return {"edited": dict(self.edited), "todo": list(self.todo), "shown": shown, "read": dict(self._read)}

    def carry(self, state: Mapping[str, Any]) -> None:
        """Restore what `carried` returned."""
        self.edited = dict(state.get("edited", {}))
        self.todo = list(state.get("todo", []))
        self._read = dict(state.get("read", {}))
        self._shown = {path: bytes.fromhex(digest) for path, digest in state.get("shown", {}).items()}


Tool = Callable[[ToolContext, dict[str, Any]], Awaitable[Output]]
