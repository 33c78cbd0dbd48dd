from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.text import SPECIAL, Tokenizer, TokenizerError

WORDS = "return in x Value Error _ __ 7 12 007 1000 foo f <|end|>"
MARKS = '( ) [ ] { } = == != -> ** * - += . , : ; ! ? # \' " """ ` \\ / @'
SPACES = [" ", "  ", "     ", "\t", "\n", "\r\n", "\r", "\x0b", "\x00", "é", "☃", "🙂", "\u2028"]
code_like = st.lists(st.sampled_from([*WORDS.split(), *MARKS.split(), *SPACES]), max_size=30).map("".join)


@settings(max_examples=300, deadline=None)
@given(text=st.one_of(st.text(max_size=60), code_like))
def test_every_text_comes_back_and_holds_no_special_token(
    tokenizer: Tokenizer, small_tokenizer: Tokenizer, text: str
) -> None:
    for trained in (tokenizer, small_tokenizer):
        ids = trained.encode(text)
        assert trained.decode(ids) == text
        assert all(token > SPECIAL.end for token in ids)


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 1 << 20), max_size=40))
def test_any_ids_decode_to_text_that_is_utf8(tokenizer: Tokenizer, ids: list[int]) -> None:
    tokenizer.decode(token % tokenizer.vocab_size for token in ids).encode()


@settings(deadline=None)
@given(first=code_like, second=code_like)
def test_lines_do_not_depend_on_each_other(tokenizer: Tokenizer, first: str, second: str) -> None:
    both = tokenizer.encode(first + "\n" + second)
    assert both == tokenizer.encode(first) + tokenizer.encode("\n") + tokenizer.encode(second)


@pytest.mark.parametrize(
    "line",
    [
        "edit calc.py 3 return a + b",
        "3 return a + b",
        "FAIL clamp(5, 1, 3) gave 1, expected 3",
        "def clamp(value, low, high):",
        "def push_all(self, values: list[int], key=None) -> int:",
        "        self._items = list(items)",
        "if value not in self._items and (index % 2 == 0 or value >= -1):",
        "    return max(low, min(value, high))",
        'result["sum"] += prices.pop() * rate',
        "result = {'sum': 0, \"count\": 1}",
        'raise Value(f"cannot add {result} to the total")',
        "# Keep value between low and high.",
        "def __init__(self, *items, limit=10):",
        "x = values[1:], -x, not -1, (low)",
        "It's enough, isn't it? The sum is wrong. Fixed",
    ],
)
def test_ordinary_code_and_english_need_no_space_tokens(tokenizer: Tokenizer, line: str) -> None:
    labels = [tokenizer.label(token) for token in tokenizer.encode(line)]
    assert " " not in labels
    assert "<glue>" not in labels
    assert tokenizer.decode(tokenizer.encode(line)) == line


def test_one_token_per_word_number_operator_and_indentation(tokenizer: Tokenizer) -> None:
    def labels(text: str) -> list[str]:
        return [tokenizer.label(token) for token in tokenizer.encode(text)]

    assert labels("edit calc.py 3 return a + b") == ["edit", "calc", ".", "py", "3", "return", "a", "+", "b"]
    assert labels("        return low") == ["        ", "return", "low"]
    assert labels("push_all") == ["push", "_", "all"]
    assert labels("ValueError") == ["Value", "<glue>", "Error"] or labels("ValueError") == ["Value", "Error"]
    assert labels("value 42 100 007") == ["value", "42", "10", "0", "0", "0", "7"]


def test_a_line_has_the_same_tokens_in_a_listing_and_in_an_edit(tokenizer: Tokenizer) -> None:
    line = tokenizer.encode("return zorblax_7(a + b)")
    listing = tokenizer.encode("3 return zorblax_7(a + b)")
    edit = tokenizer.encode("edit zorblax_7.py 3 return zorblax_7(a + b)")
    assert listing[-len(line) :] == line
    assert edit[-len(line) :] == line
    name = tokenizer.encode("zorblax_7")
    assert edit[1 : 1 + len(name)] == name


def test_lone_surrogates_become_question_marks(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a?b"


def test_saving_pickling_and_loading_keep_every_id(
    tokenizer: Tokenizer, code: str, transcript: str, tmp_path: Path
) -> None:
    tokenizer.save(tmp_path / "run" / "tokenizer.json")
    ids = tokenizer.encode(code + transcript)
    for copy in (Tokenizer.load(tmp_path / "run" / "tokenizer.json"), pickle.loads(pickle.dumps(tokenizer))):
        assert copy.vocab_size == tokenizer.vocab_size
        assert copy.encode(code + transcript) == ids
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["tokenizer.json"]


def test_labels_are_for_people(tokenizer: Tokenizer) -> None:
    assert tokenizer.label(SPECIAL.call) == "<|call|>"
    assert [tokenizer.label(token) for token in tokenizer.encode("é")] == ["<0xc3>", "<0xa9>"]
    with pytest.raises(TokenizerError, match="outside the vocabulary"):
        tokenizer.label(tokenizer.vocab_size)
