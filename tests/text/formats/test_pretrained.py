"""Published tokenizers: special tokens come by id alone. With ETUDE_TOKENIZERS=folder the real ones are asked too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.text.formats.golden import TOOLS, conversation, expected_text, read_expected
from tests.text.formats.real import REAL
from tests.text.formats.tiny import SPECIALS, markers, merged, merged_file
from tokenizers import Tokenizer

from etude.text import TokenizerError
from etude.text.formats import FORMATS
from etude.text.pretrained import PretrainedTokenizer

texts = st.lists(st.one_of(st.text(max_size=8), st.sampled_from(SPECIALS)), max_size=6).map("".join)


@settings(max_examples=80, deadline=None)
@given(text=texts)
def test_every_text_comes_back_and_holds_no_special_token(text: str) -> None:
    ids = merged().encode(text)
    assert merged().decode(ids) == text
    assert not markers(merged(), ids)


@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.integers(0, 1000), max_size=20))
def test_any_ids_decode(ids: list[int]) -> None:
    assert isinstance(merged().decode(ids), str)


def test_tokens_reach_over_the_pieces_of_a_template() -> None:
    form = FORMATS["qwen3"](merged(), TOOLS)
    ids = form.opening("You mend code.", "x")
    assert ".\n\n" in [merged().decode([token]) for token in ids]


def test_a_lone_surrogate_becomes_a_question_mark() -> None:
    assert merged().decode(merged().encode("a\ud800b")) == "a?b"


def test_a_file_or_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(merged_file()), encoding="utf-8")
    for place in (file, tmp_path):
        loaded = PretrainedTokenizer.load(place)
        assert loaded.encode("I read both.\n\n") == merged().encode("I read both.\n\n")
        assert loaded.special("<think>") == merged().special("<think>")
        assert loaded.special("<nowhere>") is None


def test_what_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="No such file"):
        PretrainedTokenizer.load(tmp_path)
    file = tmp_path / "tokenizer.json"
    for text, said in (
        ("{", "not JSON"),
        ("[]", "is not a tokenizer"),
        ('{"format": "etude-tokenizer/1"}', "not a tokenizer"),
    ):
        file.write_text(text)
        with pytest.raises(TokenizerError, match=said):
            PretrainedTokenizer.load(tmp_path)
    file.write_text('{"model": {"type": "no such"}}')
    with pytest.raises(TokenizerError, match="cannot be used"):
        PretrainedTokenizer.load(file)


@pytest.mark.skipif(not REAL, reason="set ETUDE_TOKENIZERS to a folder that holds tokenizer.json files of these models")
@pytest.mark.parametrize(("name", "file"), REAL or [("none", Path("none"))], ids=lambda part: str(part)[-60:])
def test_a_real_tokenizer_writes_our_conversation_as_its_template_does(name: str, file: Path) -> None:
    tokenizer = PretrainedTokenizer.load(file)
    form = FORMATS[name](tokenizer, TOOLS)
    ids = conversation(form, tokenizer)
    expected = expected_text(name, tokenizer)
    assert tokenizer.decode(ids) == expected.replace("«", "").replace("»", "")
    assert ids == read_expected(expected, tokenizer, SPECIALS)
    # Outside of what a text names, the model's own library finds the same tokens in the whole.
    published = Tokenizer.from_file(str(file))
    calm = expected.partition("«")[0]
    assert read_expected(calm, tokenizer, SPECIALS) == published.encode(calm, add_special_tokens=False).ids
