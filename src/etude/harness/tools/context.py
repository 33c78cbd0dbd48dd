"""The state of a run that tools use: the workspace, the limits, and what the agent has read and changed so far.

A tool is a function from a ToolContext and arguments to an Output; `harness/toolbox.py` calls it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from etude.harness.chunks import ChunkIndex
from etude.harness.context.profile import Profile
from etude.harness.external_services import ExternalServices
from etude.harness.lints import Lints
from etude.harness.workspaces.workspace import AsksFirst, Workspace


@dataclass(frozen=True, slots=True)
class ToolLimits:
    command_seconds: float = 10.0
    """Time limit of one shell command. A command that reaches it has failed, unless the host gave it no CPU time: that
    is an infrastructure failure."""
    edits: int | None = None
    """Maximum number of successful edits in the whole run; None for no limit."""
    strict: bool = False
    """Whether tools are stricter. A file must be read before it is changed. An argument of `null` is an error and does
    not count as absent. A patch must match exactly. All lines that `read` is asked for must exist."""


class ToolProblem(Exception):
    """The call cannot be run. The message becomes the call's result for the model."""


@dataclass(slots=True)
class Output:
    lines: Sequence[str]
    keep_end: bool = False
    """Whether a cut keeps the end of the output as well as its beginning."""
    ok: bool = True
    valid: bool = True
    """False if the call itself was wrong: an unknown tool, or arguments that do not parse or do not fit its schema."""
    finished: bool = False
    seconds: float = 0.0
    """Running time of the call's command, which counts toward `Budgets.tool_seconds`; 0 if the host was short of CPU
    time."""
    reread: bool = False
    """Whether the call read a file that the agent had last read before its latest self-summary."""


class ToolContext:
    def __init__(
        self,
        workspace: Workspace,
        limits: ToolLimits,
        profile: Profile,
        *,
        outside: ExternalServices | None = None,
        after_edit: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`after_edit` is called each time that a tool has changed a file, before the next change."""
        self.workspace = workspace
        self.limits = limits
        self.say = profile.say
        self.edited: dict[str, int] = {}
        self.todo: list[str] = []
        self.jobs: list[tuple[int, str]] = []
        """Number and command of each background job that ran at the last check."""
        self.lints = Lints()
        self.context = 0
        """Number of self-summaries so far, set by the agent loop."""
        self.outside = outside or ExternalServices()
        self.chunk_index: ChunkIndex | None = None
        self._after_edit = after_edit
        self._shown: dict[str, bytes] = {}
        self._read: dict[str, int] = {}
        """For each file that the agent has read: how many self-summaries there were before its last read. The least
        recently read file comes first."""

    async def has_edited(self, path: str, data: bytes | None) -> None:
        """Record that a tool changed a file (None: deleted it); every tool calls this after each change."""
        self.edited[path] = self.edited.get(path, 0) + 1
        self.has_shown(path, data)
        if data is None:
            self._read.pop(path, None)
        if self._after_edit is not None:
            await self._after_edit()

    def require_edits(self, files: int = 1) -> None:
        """Raise ToolProblem if `files` more edits exceed the limit. Every tool calls this before it changes files."""
        if self.limits.edits is not None and sum(self.edited.values()) + files > self.limits.edits:
            raise ToolProblem(self.say("no_edits_left"))

    async def agree(self, changes: Mapping[str, bytes | None]) -> None:
        """Ask the user once about several changes, if the workspace asks at all. A tool that changes several files
        calls this first."""
        if isinstance(self.workspace, AsksFirst):
            await self.workspace.agree(changes)

    def has_shown(self, path: str, data: bytes | None) -> None:
        if data is None:
            self._shown.pop(path, None)
        else:
            self._shown[path] = xxhash.xxh3_128_digest(data)

    def has_read(self, path: str, data: bytes) -> bool:
        """Record that the agent reads a file. Return whether it last read the file before its latest self-summary;
        False if this is its first read."""
        self.has_shown(path, data)
        before = self._read.pop(path, self.context)
        self._read[path] = self.context
        return before < self.context

    def open_files(self) -> list[str]:
        return list(self._read)

    def knows(self, path: str, data: bytes) -> bool:
        """Return whether the file still has the contents that the agent last read or wrote. A file that it never read
        counts as known, unless `ToolLimits.strict`."""
        shown = self._shown.get(path)
        return not self.limits.strict if shown is None else shown == xxhash.xxh3_128_digest(data)

    def require_known(self, path: str, data: bytes) -> None:
        if not self.knows(path, data):
            raise ToolProblem(self.say("stale", path=path))

    def carried(self) -> dict[str, Any]:
        """Return the state that a resumed session needs, as JSON, for `carry`."""
        shown = {path: digest.hex() for path, digest in self._shown.items()}
        return {"edited": dict(self.edited), "todo": list(self.todo), "shown": shown, "read": dict(self._read)}

    def carry(self, state: Mapping[str, Any]) -> None:
        self.edited = dict(state.get("edited", {}))
        self.todo = list(state.get("todo", []))
        self._read = dict(state.get("read", {}))
        self._shown = {path: bytes.fromhex(digest) for path, digest in state.get("shown", {}).items()}


Tool = Callable[[ToolContext, dict[str, Any]], Awaitable[Output]]
