"""The agent loop: sample a turn, run its calls, append the results, until the agent finishes or a budget is spent.

Training, demonstrations, evaluation and users run this same loop; it does not depend on the kind of policy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import takewhile

from etude.harness.context.nudges import Nudges
from etude.harness.context.profile import Profile
from etude.harness.outcome import Budgets, Outcome
from etude.harness.parallel import run_in_call_order
from etude.harness.policy import ContextFull, Policy, PolicyError
from etude.harness.toolbox import Toolbox
from etude.harness.tools.context import Output
from etude.sandbox.contract import SandboxError
from etude.trace.conversation.messages import Conversation, Message, Role, ToolCall, Turn
from etude.trace.trace import StopCause, ToolEvent, TraceUsage


class Observer:
    """Callbacks that the loop awaits during a run. The methods here do nothing; override those you need."""

    async def turn(self, conversation: Conversation, turn: Turn) -> None:
        """Called after a turn was sampled and appended to the conversation."""

    async def tool(self, event: ToolEvent) -> None:
        """Called after each call's result was appended to the conversation."""

    async def answered(
        self, turn: Turn, tools: Sequence[ToolEvent], told: Sequence[Message], usage: TraceUsage
    ) -> None:
        """Called at the end of each turn, after its calls have results and the harness has appended its nudges
        (messages to the model).

        `tools` are the turn's tool events, interrupted calls included; if a call ended the run, its event is the last.
        `told` are the nudges. `usage` covers the run so far.
        """

    async def summary(self, conversation: Conversation, turn: Turn, usage: TraceUsage) -> None:
        """Called after a self-summary. `conversation` is the new conversation; the last messages of its parent are the
        summary request and `turn`."""


async def run_agent(
    conversation: Conversation,
    policy: Policy,
    toolbox: Toolbox,
    budgets: Budgets,
    profile: Profile,
    *,
    observer: Observer | None = None,
    outcome: Outcome | None = None,
) -> Outcome:
    """Run the agent until it stops. `conversation` must end with a user message, or be the conversation of an
    interrupted run.

    Failures of the policy or the sandbox are reported in the outcome; only cancellation is raised. Pass `outcome` to
    keep the result of a cancelled run.
    """
    outcome = outcome or Outcome(conversation)
    run = _Run(conversation, policy, toolbox, budgets, profile, observer or Observer(), outcome)
    try:
        async with asyncio.timeout(budgets.wall_seconds) as clock:
            outcome.stop = await run.until_stopped()
    except TimeoutError:
        if not clock.expired():
            raise
        outcome.stop = StopCause.WALL_CLOCK
        outcome.error = f"the run took longer than {budgets.wall_seconds:g} s"
    except (PolicyError, SandboxError) as error:
        outcome.stop = StopCause.ERROR
        outcome.error = f"{type(error).__name__}: {error}"
    return outcome


@dataclass(slots=True)
class _Run:
    conversation: Conversation
    policy: Policy
    toolbox: Toolbox
    budgets: Budgets
    profile: Profile
    observer: Observer
    outcome: Outcome
    usage: TraceUsage = field(init=False)
    nudges: Nudges = field(init=False)
    told: int = field(init=False)
    """Number of tool events that were already passed to `Observer.answered`."""
    open: Turn | None = None
    """The turn in progress; None once it is completed."""

    def __post_init__(self) -> None:
        self.usage = self.outcome.usage
        self.nudges = Nudges(self.profile)
        self.told = len(self.outcome.tools)
        self.toolbox.context = self.conversation.summaries

    async def until_stopped(self) -> StopCause:
        last = self.conversation.messages[-1].turn
        if last is not None and not last.calls and not last.cut_off:
            # The interrupted run had already sampled its final answer.
            self.outcome.final_text = last.text
            return StopCause.REPLIED
        try:
            while True:
                if (stop := self.spent()) is not None:
                    return stop
                if self.summary_due():
                    await self.summarise()
                    continue
                turn = await self.act(self.budgets.turn_tokens)
                stop = await self.run_calls(turn) if turn.calls else None
                said = await self.answered(turn, over=stop is not None)
                if stop is not None:
                    return stop
                if not turn.calls and not said:
                    self.outcome.final_text = turn.text
                    return StopCause.REPLIED
        except ContextFull:
            return StopCause.CONTEXT
        finally:
            if self.open is not None:
                await self.interrupted(self.open)

    def spent(self) -> StopCause | None:
        budgets, usage = self.budgets, self.usage
        if usage.turns >= budgets.turns:
            return StopCause.TURNS
        if self.tokens_left() <= 0:
            return StopCause.TOKENS
        if budgets.tool_seconds and usage.tool_seconds >= budgets.tool_seconds:
            return StopCause.TOOL_SECONDS
        if budgets.money and usage.cost >= budgets.money:
            return StopCause.MONEY
        return None

    async def act(self, max_tokens: int, *, summary: bool = False) -> Turn:
        """Sample one turn and add it to the usage. A summary costs tokens but does not count as a turn."""
        # For endpoints that report no token counts, the cost is computed from our own estimate of the prompt.
        asked = self.policy.tokens(self.conversation) if self.budgets.money else 0
        started = time.monotonic()
        try:
            turn = await self.policy.act(self.conversation, max_tokens=min(max_tokens, self.tokens_left()))
        finally:
            self.outcome.seconds["policy"] += time.monotonic() - started
        self.conversation.messages.append(Message(Role.ASSISTANT, turn.text, turn=turn))
        self.usage.sampled_tokens += turn.sampled_tokens
        self.usage.thinking_tokens += turn.thinking_tokens
        self.usage.call_tokens += turn.call_tokens
        self.usage.message_tokens += turn.message_tokens
        self.usage.prompt_tokens += turn.prompt_tokens
        self.usage.cached_tokens += turn.cached_tokens
        self.usage.cost += self.budgets.prices.of(turn if turn.prompt_tokens else replace(turn, prompt_tokens=asked))
        if not summary:
            self.usage.turns += 1
            self.open = turn
        await self.observer.turn(self.conversation, turn)
        return turn

    async def run_calls(self, turn: Turn) -> StopCause | None:
        """Run the turn's calls, in parallel if they cannot conflict, and append their results in call order. Return why
        the run ends, if it does. The results share one token limit, so that many calls cannot flood the context."""
        room = self.budgets.output_tokens
        calls = turn.calls[: max(0, self.budgets.tool_calls - self.usage.tool_calls)]
        scopes = [self.toolbox.scope(call) for call in calls]
        left = iter(calls)
        answers = run_in_call_order(scopes, lambda index: self.timed(calls[index]), lambda answer: answer[0].finished)
        async with aclosing(answers):
            async for output, seconds in answers:
                call = next(left)
                result = self.toolbox.bounded(output, max_tokens=room, count=self.policy.count)
                self.conversation.messages.append(Message(Role.TOOL, result.output, call=call))
                size = self.policy.count(result.output)
                room = max(room - size, 0)
                self.outcome.seconds["tools"] += seconds
                self.usage.tool_calls += 1
                self.usage.invalid_calls += not result.valid
                self.usage.output_tokens += size
                self.usage.tool_seconds += output.seconds
                self.usage.rereads += output.reread
                event = ToolEvent(
                    segment=self.conversation.summaries,
                    turn=self.usage.turns - 1,
                    name=call.name,
                    arguments=call.raw,
                    ok=result.ok,
                    valid=result.valid,
                    seconds=seconds,
                    output=result.output,
                    output_tokens=size,
                )
                self.outcome.tools.append(event)
                await self.observer.tool(event)
                if result.finished:
                    self.outcome.final_text = result.output or turn.text
                    return StopCause.FINISHED
        return StopCause.TOOL_CALLS if len(calls) < len(turn.calls) else None

    async def timed(self, call: ToolCall) -> tuple[Output, float]:
        begun = time.monotonic()
        return await self.toolbox.carry_out(call), time.monotonic() - begun

    def summary_due(self) -> bool:
        trigger = self.budgets.summary_trigger
        acted = any(message.role is Role.ASSISTANT for message in self.conversation.messages)
        return bool(trigger) and acted and self.policy.tokens(self.conversation) >= trigger

    async def summarise(self) -> None:
        old, usage = self.conversation, self.usage
        size, before = len(old.messages), self.policy.tokens(old)
        self.tell(self.profile.summary_request)
        try:
            turn = await self.act(self.budgets.summary_tokens, summary=True)
        except BaseException:
            # Without a complete summary, the request is removed, so that the conversation can be resumed before it.
            del old.messages[size:]
            raise
        summary = turn.text.strip()
        self.conversation = self.outcome.conversation = self.profile.resume(
            old,
            summary=summary,
            edited=list(self.toolbox.edited),
            todo=self.toolbox.todo,
            jobs=self.toolbox.jobs,
            read=self.toolbox.open_files(),
            turns_left=self.budgets.turns - usage.turns,
            cut_off=turn.cut_off,
        )
        self.toolbox.context = self.conversation.summaries
        usage.summaries += 1
        usage.summary_tokens += turn.sampled_tokens
        usage.empty_summaries += not summary
        usage.cut_summaries += turn.cut_off
        usage.context_before += before
        usage.context_after += self.policy.tokens(self.conversation)
        await self.observer.summary(self.conversation, turn, usage)

    def tell(self, text: str) -> Message:
        message = Message(Role.USER, text)
        self.conversation.messages.append(message)
        return message

    async def interrupted(self, turn: Turn) -> None:
        """Complete the current turn after the run ended in the middle of it.

        The effects of its calls remain, so the turn stays in the conversation. Calls without a result get one that says
        that they were interrupted, for a run that resumes this conversation.
        """
        messages = self.conversation.messages
        done = sum(1 for _ in takewhile(lambda message: message.role is Role.TOOL, reversed(messages)))
        text = self.profile.say_if_known("interrupted", self.profile.cut_off)
        events = []
        for call in turn.calls[done:]:
            messages.append(Message(Role.TOOL, text, call=call))
            events.append(
                ToolEvent(
                    self.conversation.summaries,
                    self.usage.turns - 1,
                    call.name,
                    call.raw,
                    ok=False,
                    valid=True,
                    seconds=0.0,
                    output=text,
                    output_tokens=self.policy.count(text),
                )
            )
        await self.answered(turn, events)

    async def answered(self, turn: Turn, interrupted: Sequence[ToolEvent] = (), *, over: bool = False) -> bool:
        """Complete a turn: append nudges (messages of the harness to the model), unless `over` says that the run ends
        now, and call the observer. `interrupted` are the events of calls without a result. Return whether nudges were
        appended."""
        tools, self.told = [*self.outcome.tools[self.told :], *interrupted], len(self.outcome.tools)
        told = [] if over else [self.tell(text) for text in self.nudges.after(turn, tools)]
        self.open = None
        await self.observer.answered(turn, tools, told, self.usage)
        return bool(told)

    def tokens_left(self) -> int:
        return self.budgets.tokens - self.usage.sampled_tokens
