"""A deterministic policy that plays back given turns, without a model, for tests, examples and replays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from etude.harness.context.profile import Profile
from etude.harness.policy import PolicyError
from etude.text.calls import call_name, parse_call
from etude.trace.conversation.messages import Conversation, ToolCall, Turn

Step = Turn | str | Callable[[Conversation], Turn | str]
"""One step of a script: a turn, or a text that is parsed into a turn (lines that begin with "> " are calls), or a
function that gets the conversation and returns a turn or such a text."""


class ScriptedPolicy:
    """Policy that plays `steps` in order. Raises PolicyError if there are no more steps.

    In a step given as text, every line that begins with "> " is a tool call in the compact grammar; the other lines are
    the message. Each word counts as one token.
    """

    def __init__(self, steps: Iterable[Step], profile: Profile, *, name: str = "scripted") -> None:
        self._steps: Iterator[Step] = iter(steps)
        self._schemas = {schema.name: schema.call_schema() for schema in profile.schemas()}
        self.name = name
        self._turns = 0

    async def act(self, conversation: Conversation, *, max_tokens: int) -> Turn:
        step = next(self._steps, None)
        if callable(step):
            step = step(conversation)
        if step is None:
            raise PolicyError(f"the script of {self.name} has only {self._turns} turns")
        self._turns += 1
        return self._turn(step) if isinstance(step, str) else step

    def _turn(self, text: str) -> Turn:
        calls: list[ToolCall] = []
        message: list[str] = []
        for line in text.split("\n"):
            if not line.startswith("> "):
                message.append(line)
                continue
            raw = line[2:]
            found = parse_call(raw, self._schemas)
            place = f"{self._turns}.{len(calls)}"
            if isinstance(found, str):
                calls.append(ToolCall(place, call_name(raw), None, raw, found))
            else:
                calls.append(ToolCall(place, found[0], found[1], raw))
        said = "\n".join(message)
        spoken = self.count(said)
        call_tokens = sum(self.count(call.raw) for call in calls)
        return Turn(
            said,
            calls=tuple(calls),
            sampled_tokens=spoken + call_tokens,
            call_tokens=call_tokens,
            message_tokens=spoken,
        )

    def tokens(self, conversation: Conversation) -> int:
        said = sum(self.count(message.text) for message in conversation.messages)
        turns = [message.turn for message in conversation.messages if message.turn]
        return said + sum(self.count(call.raw) for turn in turns for call in turn.calls)

    def count(self, text: str) -> int:
        return len(text.split())
