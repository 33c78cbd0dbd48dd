"""What a reader gives of a turn, piece by piece, is what parsing the whole turn gives."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.text.formats.test_properties import BY_LETTERS, BY_PAIRS, signs

from etude.text import CompactFormat, Format, Tokenizer
from etude.text.formats import FORMATS

COMPACT = CompactFormat(Tokenizer.train(["def total(values): return sum(values)  # größe", "read list total"], 500))
FORMS: dict[str, list[Format]] = {name: [BY_LETTERS[name], BY_PAIRS[name]] for name in BY_LETTERS}
FORMS |= {"compact": [COMPACT]}

said = st.lists(
    st.one_of(
        st.text(max_size=4),
        signs,
        st.sampled_from(
            ['{"name": "read", "parameters": {}}', '\n{"na', 'me": 1}', "é", "変", "</tool", "_call>", "\n"]
        ),
    ),
    max_size=8,
).map("".join)
cuts = st.lists(st.integers(1, 5), min_size=1, max_size=6)


def whole(form: Format, ids: list[int]) -> tuple[str, str, list[tuple[str, bool]]]:
    turn = form.parse(ids)
    return turn.thinking, turn.text, [(call.raw, call.complete) for call in turn.calls]


def in_pieces(form: Format, ids: list[int], sizes: list[int]) -> tuple[str, str, list[tuple[str, bool]]]:
    reader = form.reader()
    pieces, at = [], 0
    for size in itertools.cycle(sizes):
        if at >= len(ids):
            break
        pieces += reader.feed(ids[at : at + size])
        at += size
    pieces += reader.end()
    assert all(piece.text for piece in pieces if piece.kind != "call")
    thinking, text = ("".join(piece.text for piece in pieces if piece.kind == kind) for kind in ("thinking", "text"))
    return thinking, text, [(piece.text, piece.complete) for piece in pieces if piece.kind == "call"]


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=30, deadline=None)
@given(data=st.data(), sizes=cuts)
def test_any_ids_in_any_pieces(name: str, data: st.DataObject, sizes: list[int]) -> None:
    """Whatever is sampled: bytes, halves of characters, special tokens anywhere."""
    for form in FORMS[name]:
        tokenizer = form.tokenizer  # type: ignore[attr-defined]
        size = getattr(tokenizer, "vocab_size", None) or tokenizer.size
        special = st.sampled_from([*form.stop_ids, *form.answering, *form.render_turn("a", "b", ["c"])])
        runs = st.one_of(st.integers(0, size - 1).map(lambda token: [token]), special.map(lambda token: [token]))
        texts = said.map(tokenizer.encode)
        ids = [*itertools.chain.from_iterable(data.draw(st.lists(st.one_of(runs, runs, texts), max_size=12)))]
        assert in_pieces(form, ids, sizes) == whole(form, ids)


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=25, deadline=None)
@given(thinking=said, text=said, calls=st.lists(said, max_size=3), sizes=cuts, cut=st.integers(0, 8))
@example(thinking="a\n", text="b\n\n", calls=["c", "d"], sizes=[1], cut=0)
def test_turns_in_any_pieces(name: str, thinking: str, text: str, calls: list[str], sizes: list[int], cut: int) -> None:
    """Turns as the format writes them, also cut off before their end."""
    for form in FORMS[name]:
        ids = form.render_turn(thinking, text, calls)
        ids = ids[: len(ids) - cut]
        assert in_pieces(form, ids, sizes) == whole(form, ids)


def test_text_comes_while_it_is_sampled() -> None:
    """All but what may become a mark, a character or the newlines before a call is given at once."""
    form = BY_LETTERS["chatml"]
    encode = form.tokenizer.encode  # type: ignore[attr-defined]
    given_at_once = []
    reader = form.reader()
    for part in ("It is", " ", "\n", "<tool", "box>", "\n<tool_call>", "{}", "</tool_call>"):
        given_at_once.append([piece.text for piece in reader.feed(encode(part))])
    assert given_at_once == [["It is"], [" "], [], [], ["\n<toolbox>"], [], [], ["{}"]]
    assert set(FORMS) >= set(FORMATS) - {"qwen2.5"}
