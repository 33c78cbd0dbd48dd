"""Answers are kept as they come; what keeps a model from answering is never kept, and ends the asking if it lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from etude.bench import Contestant, Kept, Prompt, Reply, ask_all
from etude.harness import ContextFull, Conversation, PolicyError, Turn

PROMPTS = [Prompt("s", f"u{n}", f"p{n}", "bound") for n in range(6)]


class Scripted:
    name = "scripted"

    def __init__(self, answers: Sequence[str | Exception]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def act(self, conversation: Conversation, *, max_tokens: int) -> Turn:
        self.asked.append(conversation.messages[-1].text)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Turn(answer, sampled_tokens=max_tokens)

    def tokens(self, conversation: Conversation) -> int:
        return 0

    def count(self, text: str) -> int:
        return len(text)


def asked(
    policy: Scripted, kept: Path, plain: bool = False, name: str = "m", prompts: Sequence[Prompt] = PROMPTS
) -> list[Reply | None]:
    one = Contestant(name, {"url": name}, plain, lambda _: policy, thinking=100)
    return asyncio.run(ask_all(one, prompts, Kept(kept), 1))


def test_what_was_answered_is_not_asked_again_and_what_failed_is(tmp_path: Path) -> None:
    first = Scripted(["a", PolicyError("no"), ContextFull(), PolicyError("no"), PolicyError("no"), "f"])
    found = asked(first, tmp_path / "kept")
    assert [reply and (reply.text, reply.fits) for reply in found] == [
        ("a", True), None, ("", False), None, None, ("f", True)
    ]  # fmt: skip
    with (tmp_path / "kept").open("a") as torn:
        torn.write('{"key": "half a li')
    second = Scripted("bde")
    found = asked(second, tmp_path / "kept")
    assert second.asked == ["u1", "u3", "u4"]
    assert [reply.text for reply in found if reply] == ["a", "b", "", "d", "e", "f"]
    assert asked(Scripted([]), tmp_path / "kept") == found


def test_another_model_or_prompt_is_asked_anew_and_may_think_only_in_a_chat(tmp_path: Path) -> None:
    asked(Scripted("abcdef"), tmp_path / "kept")
    other, plain = Scripted("ghijkl"), Scripted("mnopqr")
    (reply, *_) = asked(other, tmp_path / "kept", name="n")
    assert (reply and reply.text, other.asked[0]) == ("g", "u0")
    (bare, *_) = asked(plain, tmp_path / "kept", plain=True)
    assert plain.asked[0] == "p0"
    assert reply is not None
    assert bare is not None
    assert reply.tokens - bare.tokens == 100


def test_a_model_that_fails_in_a_row_is_asked_no_more(tmp_path: Path) -> None:
    policy = Scripted(["a", *[PolicyError("status 503")] * 5])
    with pytest.raises(PolicyError, match="m does not answer: status 503"):
        asked(policy, tmp_path / "kept")
    assert len(policy.asked) == 4
    again = Scripted("bcdef")
    assert asked(again, tmp_path / "kept")
    assert len(again.asked) == 5
