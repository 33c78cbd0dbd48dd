"""The tools of one run: checks every call, carries it out in the workspace, bounds what comes back.

Whatever the model writes, `run` returns: a call that cannot be carried out becomes an answer to the model, counted as
invalid when the call itself was malformed. Only failures of infrastructure (SandboxError) leave it. Outputs hold no
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
    """Declared limit of one shell command: a command that reaches it failed, and is told so, unless the host gave
    it no time."""
    edits: int | None = None
    """Successful edits allowed in the whole run."""
    strict: bool = False
    """A file is changed only if the agent has read it; `null` is no argument left out; a patch must fit to the letter,
    and what `read` is asked for must be there."""


@dataclass(slots=True)
class ToolResult:
    output: str
    ok: bool = True
    valid: bool = True
    """False when the call itself was malformed: unknown tool, arguments that do not parse."""
    finished: bool = False


class ToolProblem(Exception):
    """What was asked cannot be done; the text is the answer to the model."""


@dataclass(slots=True)
class Output:
    """What a tool says, by lines, and which part of it matters most when it has to be cut."""

    lines: Sequence[str]
    keep_end: bool = False
    ok: bool = True
    valid: bool = True
    """False when the call itself was malformed: unknown tool, arguments that do not parse."""
    finished: bool = False
    """The run is over."""
    seconds: float = 0.0
    """That a command ran, by the clock that bounds it; 0 on a host that was short of time."""
    reread: bool = False
    """A file that was read in an earlier context, before a self-summary, and not yet in this one."""


Tool = Callable[["Toolbox", dict[str, Any]], Awaitable[Output]]


class Toolbox:
    """`tools` adds implementations for schemas beyond the built-in ones."""

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
        """`after_edit` is called when a tool has changed a file, before anything else changes one."""
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
        """Successful edits per file, in order of the first."""
        self.todo: list[str] = []
        self.jobs: list[tuple[int, str]] = []
        """Number and command of those that run, as far as was looked."""
        self.lints = Lints()
        self.context = 0
        """Self-summaries so far; the loop says."""
        self.outside = outside or Outside()
        self.chunk_index: ChunkIndex | None = None
        """Made by the first search."""
        self._tools = implementations
        self._after_edit = after_edit
        self._shown: dict[str, bytes] = {}
        """Digests of files as the agent last saw them."""
        self._read: dict[str, int] = {}
        """The context in which each file was last read, in the order of those reads."""

    async def has_edited(self, path: str, data: bytes | None) -> None:
        """Every tool that changes a file says so here; None: it is gone."""
        self.edited[path] = self.edited.get(path, 0) + 1
        self.has_shown(path, data)
        if data is None:
            self._read.pop(path, None)
        if self._after_edit is not None:
            await self._after_edit()

    def require_edits(self, files: int = 1) -> None:
        """Every tool asks this before it changes files."""
        if self.limits.edits is not None and sum(self.edited.values()) + files > self.limits.edits:
            raise ToolProblem(self.say("no_edits_left"))

    async def agree(self, changes: Mapping[str, bytes | None]) -> None:
        """Every tool that changes several files asks this before the first: what belongs together is one question."""
        if isinstance(self.workspace, AsksFirst):
            await self.workspace.agree(changes)

    def has_shown(self, path: str, data: bytes | None) -> None:
        """What the agent knows a file to be, from having read or written it."""
        if data is None:
            self._shown.pop(path, None)
        else:
            self._shown[path] = xxhash.xxh3_128_digest(data)

    def has_read(self, path: str, data: bytes) -> bool:
        """The agent looked into a file. Whether it had done so before a self-summary, and not since."""
        self.has_shown(path, data)
        before = self._read.pop(path, self.context)
        self._read[path] = self.context
        return before < self.context

    def open_files(self) -> list[str]:
        """Those that the agent has read and that are still there, the last one last."""
        return list(self._read)

    def knows(self, path: str, data: bytes) -> bool:
        """Whether a file is still what the agent saw. Of one that it never saw it believes nothing that could be wrong,
        unless it must look first."""
        shown = self._shown.get(path)
        return not self.limits.strict if shown is None else shown == xxhash.xxh3_128_digest(data)

    def carried(self) -> dict[str, Any]:
        """What it has to know again when a session goes on, as JSON."""
        shown = {path: digest.hex() for path, digest in self._shown.items()}
        return {"edited": dict(self.edited), "todo": list(self.todo), "shown": shown, "read": dict(self._read)}

    def carry(self, state: Mapping[str, Any]) -> None:
        """The opposite of `carried`."""
        self.edited = dict(state.get("edited", {}))
        self.todo = list(state.get("todo", []))
        self._read = dict(state.get("read", {}))
        self._shown = {path: bytes.fromhex(digest) for path, digest in state.get("shown", {}).items()}

    def reach(self, call: ToolCall) -> Reach:
        """What a call may touch, as far as it can be told before it runs."""
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
        """What the call says, whole: how much of it the model reads is decided when all calls of its turn are done."""
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
