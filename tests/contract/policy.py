"""Contract suite of policies: what the agent loop requires of each. Policies of third parties can run it too.

`make(actions)` opens a policy whose next turns are `actions`: a text, or a tool call as (name, arguments). `broken()`
opens one whose infrastructure fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

import pytest
from tests.contract.sandbox.support import in_loop

from etude.harness import Conversation, Message, Policy, PolicyError, Role, load_profile

Action = str | tuple[str, dict[str, object]]
Make = Callable[[Sequence[Action]], AbstractAsyncContextManager[Policy]]
Broken = Callable[[], AbstractAsyncContextManager[Policy]]

PROFILE = load_profile("compact")


def opened() -> Conversation:
    return PROFILE.open("make check pass", "contract")


class PolicyContract:
    """Subclass it and provide the fixtures `make` and `broken`."""

    @in_loop
    async def test_it_is_a_policy(self, make: Make) -> None:
        async with make(["done"]) as policy:
            assert isinstance(policy, Policy)
            assert policy.name

    @in_loop
    async def test_a_message(self, make: Make) -> None:
        async with make(["all good"]) as policy:
            turn = await policy.act(opened(), max_tokens=50)
            assert turn.text.strip() == "all good"
            assert not turn.calls
            assert not turn.cut_off
            assert turn.sampled_tokens > 0
            assert turn.message_tokens > 0

    @in_loop
    async def test_a_call_and_its_answer(self, make: Make) -> None:
        arguments: dict[str, object] = {"path": "calc.py", "lines": "3 return max(a, b)"}
        async with make([("edit", arguments), "done"]) as policy:
            conversation = opened()
            before = list(conversation.messages)
            turn = await policy.act(conversation, max_tokens=50)
            assert conversation.messages == before, "the loop appends, the policy does not"
            assert [(call.name, call.arguments) for call in turn.calls] == [("edit", arguments)]
            assert turn.calls[0].raw
            assert turn.calls[0].id
            assert turn.call_tokens > 0
            conversation.messages.append(Message(Role.ASSISTANT, turn.text, turn=turn))
            conversation.messages.append(Message(Role.TOOL, "ok", call=turn.calls[0]))
            assert (await policy.act(conversation, max_tokens=50)).text.strip() == "done"

    @in_loop
    async def test_tokens_grow_with_the_conversation(self, make: Make) -> None:
        async with make(["one", "two"]) as policy:
            conversation = opened()
            sizes = [policy.tokens(conversation)]
            turn = await policy.act(conversation, max_tokens=50)
            conversation.messages.append(Message(Role.ASSISTANT, turn.text, turn=turn))
            conversation.messages.append(Message(Role.USER, "go on with the next thing, please"))
            sizes.append(policy.tokens(conversation))
            assert policy.tokens(conversation) == sizes[-1], "asking changes nothing"
            assert 0 < sizes[0] < sizes[1]

    @in_loop
    async def test_texts_are_counted(self, make: Make) -> None:
        async with make(["x"]) as policy:
            assert policy.count("") == 0
            assert 0 < policy.count("return a + b") <= policy.count("return a + b " * 9)

    @in_loop
    async def test_a_new_context_after_a_summary(self, make: Make) -> None:
        async with make(["so far so good", "done"]) as policy:
            old = opened()
            turn = await policy.act(old, max_tokens=50)
            old.messages.append(Message(Role.ASSISTANT, turn.text, turn=turn))
            new = PROFILE.resume(old, summary=turn.text, edited=["calc.py"], turns_left=3)
            assert (await policy.act(new, max_tokens=50)).text.strip() == "done"

    @in_loop
    async def test_failing_infrastructure_is_a_policy_error(self, broken: Broken) -> None:
        async with broken() as policy:
            with pytest.raises(PolicyError):
                await policy.act(opened(), max_tokens=50)
