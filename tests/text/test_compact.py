from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from etude.text import SPECIAL, CompactFormat, Tokenizer

TOKENIZER = Tokenizer.train(["def read(a, b):\n    return a + b  # the sum of a and b\n", "read calc.py 3"], 600)
FORMAT = CompactFormat(TOKENIZER)

any_ids = st.lists(st.one_of(st.integers(0, 8), st.integers(0, TOKENIZER.vocab_size - 1)), max_size=30)
texts = st.text(max_size=20)


@settings(deadline=None)
@given(thinking=texts, text=texts, calls=st.lists(texts, max_size=3))
def test_a_rendered_turn_parses_back(thinking: str, text: str, calls: list[str]) -> None:
    ids = FORMAT.render_turn(thinking, text, calls)
    turn = FORMAT.parse(ids)
    assert (turn.thinking, turn.text, [call.raw for call in turn.calls]) == (thinking, text, calls)
    assert turn.ended
    assert turn.thinking_tokens + turn.call_tokens + turn.message_tokens == len(ids)


@settings(max_examples=80, deadline=None)
@given(sampled=any_ids)
def test_any_sampled_ids_parse_and_every_token_is_counted(sampled: list[int]) -> None:
    turn = FORMAT.parse(sampled)
    looked_at = sampled.index(SPECIAL.end) + 1 if SPECIAL.end in sampled else len(sampled)
    assert turn.ended == (SPECIAL.end in sampled)
    assert turn.thinking_tokens + turn.call_tokens + turn.message_tokens == looked_at
    assert len(turn.calls) == sampled[:looked_at].count(SPECIAL.call)


def read_back(ids: list[int]) -> list[tuple[str, list[int]]]:
    """The messages of a conversation by its grammar alone: a role's marker opens one, the next <end> closes it, with
    whatever lies between. The last one is open: it is the assistant's to write."""
    assert ids[0] == SPECIAL.bos
    messages: list[tuple[str, list[int]]] = []
    rest = ids[1:]
    while rest:
        role = next(name for name in ("system", "user", "assistant", "tool") if getattr(SPECIAL, name) == rest[0])
        stop = rest.index(SPECIAL.end) if SPECIAL.end in rest else len(rest)
        messages.append((role, rest[1:stop]))
        rest = rest[stop + 1 :]
    return messages


@settings(max_examples=80, deadline=None)
@given(
    system=texts,
    user=texts,
    turns=st.lists(st.tuples(any_ids, st.lists(texts, min_size=1, max_size=2) | texts), max_size=4),
)
def test_a_conversation_reads_back_whatever_was_sampled(
    system: str, user: str, turns: list[tuple[list[int], list[str] | str]]
) -> None:
    """What was sampled stays one message, id for id, and all that was said comes back as it was: neither can pass for
    the other, however many markers a model puts where they do not belong."""
    ids = FORMAT.opening(system, user)
    expected: list[tuple[str, str | list[int]]] = [("system", system), ("user", user)]
    for raw_ids, said in turns:
        sampled = raw_ids[: raw_ids.index(SPECIAL.end) + 1] if SPECIAL.end in raw_ids else raw_ids
        answer = FORMAT.user_message(said) if isinstance(said, str) else FORMAT.tool_outputs(said)
        ids = [*ids, *sampled, *FORMAT.closing(sampled), *answer]
        expected.append(("assistant", [token for token in sampled if token != SPECIAL.end]))
        expected += [("user", said)] if isinstance(said, str) else [("tool", output) for output in said]
    expected.append(("assistant", []))
    found = [(role, part if role == "assistant" else TOKENIZER.decode(part)) for role, part in read_back(ids)]
    assert found == expected


def test_markers_out_of_place_stay_visible_in_the_call() -> None:
    turn = FORMAT.parse([SPECIAL.call, *TOKENIZER.encode("read"), SPECIAL.user, SPECIAL.end])
    assert turn.calls[0].raw == "read<|user|>"


def test_thinking_can_be_closed_and_the_turn_can_be_cut_off() -> None:
    ids = FORMAT.render_turn("low is wrong", "Fixed.", [])[:-1]
    turn = FORMAT.parse(ids)
    assert (turn.thinking, turn.text, turn.ended) == ("low is wrong", "Fixed.", False)
    assert FORMAT.closing(ids) == [SPECIAL.end]
    assert FORMAT.closing([*ids, SPECIAL.end]) == []


def test_the_ids_of_trained_models_stay_what_they_are() -> None:
    """Models were trained on these ids: whatever else a format learns, the compact one's stay."""
    ids = [
        *FORMAT.opening("fix it", "FAIL add(1, 2)"),
        *FORMAT.render_turn("the sum", "read", ["read calc.py 3", "list"]),
        *FORMAT.tool_outputs(["return a + b", "<|end|>"], ["read calc.py 3", "list"]),
        *FORMAT.closing([5]),
        *FORMAT.user_message("ünï"),
    ]
    assert ids == [
        *(1, 2, 111, 114, 129, 41, 114, 125, 8, 3, 421, 74, 82, 85, 414, 109, 109, 49, 267, 366, 268, 50, 8, 4),
        *(7, 445, 444, 7, 437, 6, 437, 439, 55, 442, 269, 6, 117, 114, 124, 125, 8),
        *(5, 443, 414, 381, 415, 8, 5, 69, 133, 110, 119, 109, 133, 71, 8, 4),
        *(8, 3, 204, 197, 119, 204, 184, 8, 4),
    ]
    assert (FORMAT.stop_ids, FORMAT.answering) == ((SPECIAL.end,), (SPECIAL.assistant,))
