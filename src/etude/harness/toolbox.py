"""The tools of one run: check each call, run it in the workspace, bound its output.

Whatever the model writes, `run` returns: a call that cannot be carried out becomes an answer to the model, and counts
as invalid if the call itself was malformed. Only infrastructure failures (SandboxError) propagate. Outputs contain no
times, temporary paths or addresses, so that equal runs read equal text.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import xxhash

from etude.harness.bounds import Count, cut_end, cut_middle
from etude.harness.lints import Lints
from etude.harness.outside import Outside
from etude.harness.parallel import Reach
from etude.harness.policy import ToolCall
from etude.harness.profile import Profile
from etude.harness.schema import BadArguments, SchemaError, ToolSchema
from etude.harness.workspace import AsksFirst, NoShell, OutsideWorkspace, Workspace, clean_path
from etude.sandbox.contract import RequestRefused

if TYPE_CHECKING:
    from etude.harness.chunks import ChunkIndex


@dataclass(frozen=True, slots=True)
class ToolLimits:
    command_seconds: float = 10.0
    """Time limit of one shell command. A command that reaches it has failed, and the model is told so, unless the host
    gave the command no time."""
    edits: int | None = None
    """Successful edits allowed in the whole run."""
    strict: bool = False
    """Strict checks: a file can be changed only after the agent has read it; an argument of `null` is an error instead
    of counting as left out; a patch must match exactly; and the lines that `read` is asked for must exist."""


@dataclass(slots=True)
class ToolResult:
    output: str
    ok: bool = True
    valid: bool = True
    """False when the call itself was malformed: unknown tool, arguments that do not parse."""
    finished: bool = False


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


Tool = Callable[["Toolbox", dict[str, Any]], Awaitable[Output]]


class Toolbox:
    """The tools of one run over one workspace. `tools` adds implementations for schemas beyond the built-in ones."""

    def __init__(
        self,
        schemas: Sequence[ToolSchema],
        workspace: Workspace,
        limits: ToolLimits,
        profile: Profile,
        tools: Mapping[str, Tool] | None = None,
        *,
        outside: Outside | None = None,
        after_edit: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`after_edit` is called after each change of a file by a tool, before anything else changes one."""
        from etude.harness.tools import BUILTIN

        implementations = {**BUILTIN, **(tools or {})}
        missing = [schema.name for schema in schemas if schema.name not in implementations]
        if missing:
            raise SchemaError(f"tools without an implementation: {', '.join(missing)}")
        self.schemas = {schema.name: schema for schema in schemas}
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
        self._tools = implementations
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
        """Raise ToolProblem if `files` more edits would exceed the limit; every tool calls this before it changes
        files."""
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

    def reach(self, call: ToolCall) -> Reach:
        """Return what the call may touch, as far as that can be told before it runs."""
        schema = self.schemas.get(call.name)
        if schema is None or call.arguments is None:
            return Reach("none")
        place = call.arguments.get(schema.place) if schema.place else None
        if not isinstance(place, str):
            return Reach(schema.access)
        try:
            return Reach(schema.access, clean_path(place, self.workspace.workdir))
        except OutsideWorkspace:
            return Reach("none")

    async def run(self, call: ToolCall, *, max_tokens: int, count: Count) -> ToolResult:
        return self.bounded(await self.carry_out(call), max_tokens=max_tokens, count=count)

    async def carry_out(self, call: ToolCall) -> Output:
        """Run the call and return its whole output. How much of it the model reads is decided when all calls of the
        turn are done."""
        schema = self.schemas.get(call.name)
        if schema is None:
            return _refusal(self.say("unknown_tool", name=call.name, tools=", ".join(self.schemas)), valid=False)
        if call.arguments is None:
            return _refusal(
                self.say("malformed", name=call.name, problem=call.problem or "it does not parse"), valid=False
            )
        try:
            return await self._tools[schema.name](self, schema.check(call.arguments, strict=self.limits.strict))
        except BadArguments as error:
            return _refusal(self.say("bad_arguments", name=call.name, problem=error), valid=False)
        except ToolProblem as error:
            return _refusal(str(error))
        except OutsideWorkspace as error:
            return _refusal(self.say("outside", path=str(error)))
        except RequestRefused as error:
            return _refusal(self.say("refused", problem=error))
        except NoShell:
            return _refusal(self.say("no_shell"))

    def bounded(self, output: Output, *, max_tokens: int, count: Count) -> ToolResult:
        cut = cut_middle if output.keep_end else cut_end
        text = cut(output.lines, max_tokens, count, lambda lines: self.say("cut", lines=lines), self.say("cut_text"))
        return ToolResult(text, output.ok, output.valid, output.finished)


def _refusal(text: str, *, valid: bool = True) -> Output:
    return Output(text.split("\n"), ok=False, valid=valid)
