"""The tools of one run: checks every call, carries it out in the workspace, bounds what comes back.

Whatever the model writes, `run` returns: a call that cannot be carried out becomes an answer to the model, counted as
invalid when the call itself was malformed. Only failures of infrastructure (SandboxError) leave it. Outputs hold no
times, temporary paths or addresses, so that equal runs read equal text.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from etude.harness.bounds import Count, cut_end, cut_middle
from etude.harness.policy import ToolCall
from etude.harness.profile import Profile
from etude.harness.schema import BadArguments, SchemaError, ToolSchema
from etude.harness.workspace import NoShell, OutsideWorkspace, Workspace
from etude.sandbox.contract import RequestRefused


@dataclass(frozen=True, slots=True)
class ToolLimits:
    command_seconds: float = 10.0
    """Declared limit of one shell command: a command that reaches it failed, and is told so, unless the host gave
    it no time."""
    edits: int | None = None
    """Successful edits allowed in the whole run."""


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
    finished: bool = False


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
    ) -> None:
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
        self._tools = implementations

    async def run(self, call: ToolCall, *, max_tokens: int, count: Count) -> ToolResult:
        schema = self.schemas.get(call.name)
        if schema is None:
            answer = self.say("unknown_tool", name=call.name, tools=", ".join(self.schemas))
            return self._refusal(answer, max_tokens, count, valid=False)
        if call.arguments is None:
            answer = self.say("malformed", name=call.name, problem=call.problem or "it does not parse")
            return self._refusal(answer, max_tokens, count, valid=False)
        try:
            arguments = schema.check(call.arguments)
            output = await self._tools[schema.name](self, arguments)
        except BadArguments as error:
            answer = self.say("bad_arguments", name=call.name, problem=error)
            return self._refusal(answer, max_tokens, count, valid=False)
        except ToolProblem as error:
            return self._refusal(str(error), max_tokens, count)
        except OutsideWorkspace as error:
            return self._refusal(self.say("outside", path=str(error)), max_tokens, count)
        except RequestRefused as error:
            return self._refusal(self.say("refused", problem=error), max_tokens, count)
        except NoShell:
            return self._refusal(self.say("no_shell"), max_tokens, count)
        return ToolResult(self._bounded(output, max_tokens, count), output.ok, finished=output.finished)

    def _refusal(self, text: str, max_tokens: int, count: Count, *, valid: bool = True) -> ToolResult:
        return ToolResult(self._bounded(Output(text.split("\n")), max_tokens, count), ok=False, valid=valid)

    def _bounded(self, output: Output, max_tokens: int, count: Count) -> str:
        cut = cut_middle if output.keep_end else cut_end
        return cut(output.lines, max_tokens, count, lambda lines: self.say("cut", lines=lines), self.say("cut_text"))
