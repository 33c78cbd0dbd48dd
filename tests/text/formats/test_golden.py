"""Each format writes our conversation as its published template does, special tokens where that has them and nowhere
else, and reads its own turns back."""

from __future__ import annotations

import pytest
from tests.text.formats.golden import (
    AGAIN,
    ANSWER,
    CUT,
    EXPECTED,
    OUTPUTS,
    SCHEMAS,
    SYSTEM,
    TASK,
    THINKING,
    TOOLS,
    calls_of,
    conversation,
    expected_text,
    malformed,
    read_expected,
)
from tests.text.formats.tiny import SPECIALS, Letters, merged

from etude.text import Exchange, TokenizerError, TokenizerLike
from etude.text.formats import FORMATS, KimiK2Format, Qwen3Format

TOKENIZERS: dict[str, TokenizerLike] = {"letters": Letters(), "merged": merged()}
LETTERS = TOKENIZERS["letters"]

every_format = pytest.mark.parametrize("name", FORMATS)
every_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)


@every_format
@every_tokenizer
def test_our_conversation_is_what_the_template_makes_of_it(name: str, tokenizer: TokenizerLike) -> None:
    ids = conversation(FORMATS[name](tokenizer, TOOLS), tokenizer)
    assert tokenizer.decode(ids) == EXPECTED[name].replace("«", "").replace("»", "")
    assert ids == read_expected(EXPECTED[name], tokenizer, SPECIALS)


@pytest.mark.parametrize("name", ["qwen2.5", "chatml"])
def test_what_a_vocabulary_has_no_token_for_is_plain_text(name: str) -> None:
    """The tags of outputs were no tokens when Qwen2.5 was made; other vocabularies have none for calls either."""
    letters = Letters(FORMATS[name].NAMES)
    form = FORMATS[name](letters, TOOLS)
    ids = conversation(form, letters)
    said = expected_text(name, letters).replace("«", "").replace("»", "")
    assert letters.decode(ids) == said
    assert letters.special("<tool_response>") is None
    turn = form.parse(form.render_turn("", ANSWER, calls_of(form)))
    assert [form.parse_call(call.raw, SCHEMAS) for call in turn.calls] == [
        ("read", {"path": "calc.py", "first": 3}),
        ("list", {}),
    ]
    assert turn.text == ANSWER


@every_format
def test_its_turns_are_read_back(name: str) -> None:
    form = FORMATS[name](LETTERS, TOOLS)
    ids = form.render_turn(THINKING, ANSWER, calls_of(form))
    turn = form.parse(ids)
    assert (turn.thinking, turn.text, turn.ended) == (THINKING, ANSWER, True)
    assert [form.parse_call(call.raw, SCHEMAS) for call in turn.calls] == [
        ("read", {"path": "calc.py", "first": 3}),
        ("list", {}),
    ]
    assert all(call.complete for call in turn.calls)
    assert turn.thinking_tokens >= len(LETTERS.encode(THINKING)) + 2
    assert turn.call_tokens > turn.message_tokens >= len(LETTERS.encode(ANSWER)) + 1
    assert turn.thinking_tokens + turn.call_tokens + turn.message_tokens == len(ids)


@every_format
def test_a_malformed_call_survives_and_is_told_what_is_wrong(name: str) -> None:
    form = FORMATS[name](LETTERS, TOOLS)
    raw, sampled = malformed(form, LETTERS)
    turn = form.parse(sampled)
    assert [call.raw for call in turn.calls] == [raw]
    problem = form.parse_call(turn.calls[0].raw, SCHEMAS)
    assert isinstance(problem, str)
    assert problem
    assert "\n" not in problem


@every_format
def test_a_turn_that_was_cut_off(name: str) -> None:
    form = FORMATS[name](LETTERS, TOOLS)
    whole = form.render_turn("", "", calls_of(form))
    in_first_call = form.parse(whole[:12])
    assert (in_first_call.ended, [call.complete for call in in_first_call.calls]) == (False, [False])
    behind_the_calls = form.parse(whole[:-1])
    assert (behind_the_calls.ended, [call.complete for call in behind_the_calls.calls]) == (False, [True, True])
    left_open = form.parse([*whole[:12], form.stop_ids[0]])
    assert (left_open.ended, [call.complete for call in left_open.calls]) == (True, [False])
    for cut in range(len(whole)):
        assert form.closing(whole[:cut] or [0])[0] == form.stop_ids[0]
    assert form.stop_ids[0] not in form.closing(whole)


@every_format
def test_where_the_assistant_begins(name: str) -> None:
    form = FORMATS[name](LETTERS, TOOLS)
    size = len(form.answering)
    for ids in (form.opening(SYSTEM, TASK), form.user_message(TASK)):
        assert tuple(ids[-size:]) == form.answering
    goes_on_at_once = name.startswith("deepseek")
    assert (tuple(form.tool_outputs(OUTPUTS, calls_of(form))[-size:]) != form.answering) == goes_on_at_once


BEGUN = {
    "qwen2.5": (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nGo on, please.<|im_end|>\n<|im_start|>assistant\n"
    ),
    "chatml": "<|im_start|>user\nGo on, please.<|im_end|>\n<|im_start|>assistant\n",
    "deepseek-v3.1": "<｜begin▁of▁sentence｜><｜User｜>Go on, please.<｜Assistant｜></think>",
}
"""What formats without a peer (test_renderers.py) write where there is no system message."""


@pytest.mark.parametrize("name", BEGUN)
def test_a_conversation_without_a_system_message(name: str) -> None:
    assert LETTERS.decode(FORMATS[name](LETTERS).opening(None, AGAIN)) == BEGUN[name]


def test_the_prompt_without_thinking_holds_an_empty_thought() -> None:
    form = Qwen3Format(LETTERS, thinking=False)
    assert LETTERS.decode(form.opening(SYSTEM, TASK)).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_kimi_k2_thinking_marks_also_what_was_not_thought() -> None:
    form = KimiK2Format(LETTERS, thinking=True)
    assert LETTERS.decode(form.render_turn("", "Hi.", [])) == "<think></think>Hi.<|im_end|>"
    assert form.parse(form.render_turn("", "Hi.", [])).thinking == ""


def test_a_tokenizer_of_another_format_is_refused() -> None:
    with pytest.raises(TokenizerError, match=r"no token <\|im_start\|>"):
        Qwen3Format(Letters(["<|im_end|>"]))
    with pytest.raises(TokenizerError, match="Kimi-K2-Thinking"):
        KimiK2Format(Letters(KimiK2Format.NAMES), thinking=True)


def test_thinking_without_tokens_for_it_is_refused() -> None:
    with pytest.raises(ValueError, match="mark thinking"):
        KimiK2Format(Letters(KimiK2Format.NAMES)).render_turn("Hm.", "", [])


def test_answers_to_calls_that_are_not_theirs_are_refused() -> None:
    with pytest.raises(ValueError, match="one each"):
        KimiK2Format(LETTERS).tool_outputs(["a", "b"], ["functions.list:0"])


def test_by_default_nothing_sampled_is_rewritten() -> None:
    for make in FORMATS.values():
        form = make(LETTERS, TOOLS)
        past = [Exchange(form.opening(SYSTEM, TASK), form.render_turn(THINKING, ANSWER, calls_of(form)))]
        assert form.recall(past) == past


def test_qwen3s_template_drops_earlier_thinking_and_nothing_else() -> None:
    for thinking in (True, False):
        form = Qwen3Format(LETTERS, TOOLS, thinking=thinking, history="template")
        plain = Qwen3Format(LETTERS, TOOLS)
        turn = form.render_turn(THINKING, "\n" + ANSWER, calls_of(form))
        shown = form.recall([Exchange(form.opening(SYSTEM, TASK), turn)])
        assert shown == [Exchange(plain.opening(SYSTEM, TASK), plain.render_turn("", ANSWER, calls_of(form)))]
        assert form.recall(shown) == shown
    # Thinking that was cut off has no end mark: the template takes it for text, and so it stays.
    open_thought = form.render_turn(THINKING, "", [])[:9]
    assert form.recall([Exchange([], open_thought)])[0].sampled == open_thought


def test_kimi_k2_thinkings_template_keeps_the_thinking_since_the_last_plain_answer() -> None:
    form = KimiK2Format(LETTERS, TOOLS, thinking=True, history="template")
    turns = [
        form.render_turn(THINKING, "", calls_of(form)),
        form.render_turn(THINKING, ANSWER, []),
        form.render_turn(THINKING, "", calls_of(form)),
        LETTERS.encode(CUT),
    ]
    shown = form.recall([Exchange([], turn) for turn in turns[:3]])
    assert [exchange.sampled for exchange in shown] == [
        form.render_turn("", "", calls_of(form)),
        form.render_turn("", ANSWER, []),
        turns[2],
    ]
    assert form.recall([Exchange([], turn) for turn in turns])[2].sampled == form.render_turn("", "", calls_of(form))
