"""The tools of one run: checks each call, runs it in the workspace, and limits its output.

No call of the model makes `Toolbox.run` raise: if a call cannot be run, its result says why, and a malformed call
counts as invalid. Only infrastructure failures (SandboxError) are raised. Outputs contain no times, temporary paths or
memory addresses, so that equal runs give equal text.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from etude.harness.context.output_limit import Count, cut_end, cut_middle
from etude.harness.context.profile import Profile
from etude.harness.external_services import ExternalServices
from etude.harness.parallel import CallScope
from etude.harness.schema import BadArguments, SchemaError, ToolSchema
from etude.harness.tools import BUILTIN
from etude.harness.tools.context import Output, Tool, ToolContext, ToolLimits, ToolProblem
from etude.harness.workspaces.workspace import NoShell, OutsideWorkspace, Workspace, clean_path
from etude.sandbox.contract import RequestRefused
from etude.trace.conversation.messages import ToolCall


@dataclass(slots=True)
class ToolResult:
    output: str
    ok: bool = True
    valid: bool = True
    """False if the call itself was wrong: an unknown tool, or arguments that do not parse or do not fit its schema."""
    finished: bool = False


class Toolbox(ToolContext):
    """The tools of one run on one workspace. `tools` has implementations of tools that are not built in."""

    def __init__(
        self,
        schemas: Sequence[ToolSchema],
        workspace: Workspace,
        limits: ToolLimits,
        profile: Profile,
        tools: Mapping[str, Tool] | None = None,
        *,
        outside: ExternalServices | None = None,
        after_edit: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(workspace, limits, profile, outside=outside, after_edit=after_edit)
        self._tools = {**BUILTIN, **(tools or {})}
        missing = [schema.name for schema in schemas if schema.name not in self._tools]
        if missing:
            raise SchemaError(f"tools without an implementation: {', '.join(missing)}")
        self.schemas = {schema.name: schema for schema in schemas}

    def scope(self, call: ToolCall) -> CallScope:
        """Return, before a call runs, which files it may use."""
        schema = self.schemas.get(call.name)
        if schema is None or call.arguments is None:
            return CallScope("none")
        place = call.arguments.get(schema.place) if schema.place else None
        if not isinstance(place, str):
            return CallScope(schema.access)
        try:
            return CallScope(schema.access, clean_path(place, self.workspace.workdir))
        except OutsideWorkspace:
            return CallScope("none")

    async def run(self, call: ToolCall, *, max_tokens: int, count: Count) -> ToolResult:
        """Run a call and limit its output."""
        return self.bounded(await self.carry_out(call), max_tokens=max_tokens, count=count)

    async def carry_out(self, call: ToolCall) -> Output:
        """Run a call and return its complete output, which the caller then cuts with `bounded`, since all calls of a
        turn share one token limit."""
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
