"""Asks models: anything with a Policy, be it an endpoint, a chat model or a base model that continues plain text.

What a model answers counts, also nothing. What keeps it from answering, such as an endpoint that is down, does not: the
prompt stays open, and the same command asks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from etude.bench.kept import Kept, key_of
from etude.harness import ContextFull, Conversation, Message, Policy, PolicyError, Role

_FAILURES = 3
"""Prompts in a row without an answer after which a model is asked no more."""
SPARE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question, said to a chat model and to a base model."""

    system: str
    user: str
    plain: str
    """A text whose continuation is the answer."""
    bound: str
    """A text that no good answer is much longer than."""


@dataclass(frozen=True, slots=True)
class Reply:
    text: str
    tokens: int = 0
    cut_off: bool = False
    """Whether the tokens ran out before the model ended."""
    fits: bool = True
    """Whether the prompt fits into the model's context."""


@dataclass(frozen=True, slots=True)
class Contestant:
    name: str
    identity: Mapping[str, object]
    """Everything that decides its answers."""
    plain: bool
    """Whether it continues plain text, since it has no chat format."""
    open_policy: Callable[[str], Policy]
    """Returns the policy for one conversation, given its id."""
    thinking: int = 0
    """Tokens that a chat model may think before it answers."""

    def key(self, prompt: Prompt) -> str:
        said = {"plain": prompt.plain} if self.plain else {"system": prompt.system, "user": prompt.user}
        return key_of({"model": self.identity, "thinking": self.thinking, "bound": prompt.bound, **said})

    def most_tokens(self, prompt: Prompt, count: Callable[[str], int]) -> int:
        return count(prompt.bound) * 3 // 2 + SPARE_TOKENS + (0 if self.plain else self.thinking)


async def ask_all(
    one: Contestant,
    prompts: Sequence[Prompt],
    kept: Kept,
    at_once: int,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Reply | None]:
    """Return the replies in the order of the prompts; None where the model could not be asked. Raises PolicyError after
    a few failures in a row."""
    keys = [one.key(prompt) for prompt in prompts]
    left = [place for place, key in enumerate(keys) if key not in kept]
    failures = 0
    done = len(prompts) - len(left)
    progress(done)

    async def worker() -> None:
        nonlocal failures, done
        while left:
            place = left.pop(0)
            try:
                reply = await _ask(one, keys[place], prompts[place])
            except PolicyError as error:
                failures += 1
                if failures >= _FAILURES:
                    raise PolicyError(f"{one.name} does not answer: {error}") from error
                continue
            failures = 0
            kept.put(keys[place], asdict(reply))
            done += 1
            progress(done)

    tasks = [asyncio.create_task(worker()) for _ in range(min(at_once, len(left)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [_reply(kept[key]) if key in kept else None for key in keys]


async def _ask(one: Contestant, key: str, prompt: Prompt) -> Reply:
    policy = one.open_policy(key)
    said = prompt.plain if one.plain else prompt.user
    system = "" if one.plain else prompt.system
    conversation = Conversation(key, [Message(Role.SYSTEM, system), Message(Role.USER, said)])
    try:
        turn = await policy.act(conversation, max_tokens=one.most_tokens(prompt, policy.count))
    except ContextFull:
        return Reply("", fits=False)
    return Reply(turn.text, turn.sampled_tokens, turn.cut_off)


def _reply(values: Mapping[str, Any]) -> Reply:
    return Reply(**values)
