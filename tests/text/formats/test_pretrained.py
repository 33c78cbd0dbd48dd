"""Published tokenizers: special tokens come by id alone. Real ones are asked too, where they are."""

from __future__ import annotations

import json
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.text.formats.golden import TOOLS, conversation, expected_text, read_expected
from tests.text.formats.real import every_file, every_real, loaded
from tests.text.formats.tiny import SPECIALS, markers, merged, merged_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from etude.text import Tokenizer as OwnTokenizer
from etude.text import TokenizerError, open_tokenizer, pretrained
from etude.text.formats import FORMATS
from etude.text.pretrained import ENDS, PretrainedTokenizer

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


def changed(**parts: Any) -> str:
    """The small tokenizer's file with other parts."""
    return json.dumps(merged_file() | parts)


def ids_around(text: str, settings: dict[str, Any] | None = None) -> list[str | None]:
    """The names of the special tokens around a document."""
    tokenizer = PretrainedTokenizer(text, settings)
    (ids,) = tokenizer.documents(["You <|im_end|>"])
    assert tokenizer.encode("You <|im_end|>") in (ids[:-1], ids[1:-1])
    return [name for name in SPECIALS if tokenizer.special(name) in ids]


def test_what_begins_and_ends_a_training_document() -> None:
    bos, end_of_text, end = "<｜begin▁of▁sentence｜>", "<|endoftext|>", "<|im_end|>"
    settings = {"bos_token": {"content": bos}, "eos_token": end}
    assert ids_around(changed(), settings) == [end_of_text], "an instruct model's eos_token ends turns"
    assert ids_around(changed(), settings | {"add_bos_token": True}) == [end_of_text, bos]
    added = {"id": bos, "type_id": 0}, {"id": bos, "ids": [merged().special(bos)], "tokens": [bos]}
    single = [{"SpecialToken": added[0]}, {"Sequence": {"id": "A", "type_id": 0}}]
    template = {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": {bos: added[1]}}
    assert ids_around(changed(post_processor=template)) == [end_of_text, bos]
    assert ids_around(changed(post_processor=template), settings | {"add_bos_token": False}) == [end_of_text]
    without = changed(added_tokens=[one for one in merged_file()["added_tokens"] if one["content"] not in ENDS][:1])
    assert ids_around(without, {"eos_token": "<|im_start|>"}) == ["<|im_start|>"]
    with pytest.raises(TokenizerError, match="no token that ends a document"):
        ids_around(without)


@settings(max_examples=40, deadline=None)
@given(said=st.lists(st.one_of(texts, st.just("a\ud800b")), max_size=8))
def test_documents_are_encoded_in_batches_as_one_by_one(said: list[str]) -> None:
    end = merged().special("<|endoftext|>")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretrained, "_BATCH", 10)
        assert list(merged().documents(said)) == [[*merged().encode(text), end] for text in said]


@cache
def colliding() -> PretrainedTokenizer:
    """A tokenizer whose byte pairs make whole special tokens, which are part of its vocabulary."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(list(SPECIALS) * 5, trainer)
    tokenizer.add_special_tokens(list(SPECIALS))
    return PretrainedTokenizer(tokenizer.to_str())


@settings(max_examples=60, deadline=None)
@given(text=texts)
def test_special_tokens_that_the_vocabulary_can_spell_come_by_id_alone_too(text: str) -> None:
    assert max(colliding().special(name) or 0 for name in SPECIALS) < colliding().vocab_size < 900, (
        "they are in the vocabulary"
    )
    (document,) = colliding().documents([text])
    for ids in (colliding().encode(text), document[:-1]):
        assert colliding().decode(ids) == text
        assert not markers(colliding(), ids)


def test_a_limit_of_length_in_the_file_cuts_no_text() -> None:
    cut = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    text = "You mend code. I read both files."
    assert PretrainedTokenizer(changed(truncation=cut)).encode(text) == merged().encode(text)


first, second = merged_file()["added_tokens"][:2]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"added_tokens": [first, second | {"id": first["id"]}]}, f"have the id {first['id']} twice"),
        ({"added_tokens": [first, second | {"content": "<|im_start|>"}]}, r"have the token '<\|im_start\|>' twice"),
        ({"added_tokens": [first | {"id": 9_999}]}, r"'<\|im_start\|>' has the id 9999, but 379 in the library"),
        ({"added_tokens": [first | {"id": 97, "content": "f"}]}, "'f' has the id 97, but 69 in the library"),
        ({"decoder": {"type": "Fuse"}}, "not byte-level"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "added_tokens": []}, "found none for 0x00"),
    ],
)
def test_a_vocabulary_that_contradicts_itself_is_refused_in_one_line(
    parts: dict[str, Any], said: str, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_text(changed(**parts), encoding="utf-8")
    with pytest.raises(TokenizerError, match=said) as caught:
        open_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_is_opened_by_what_its_file_says(tmp_path: Path) -> None:
    own = OwnTokenizer.train(["x = 1\n"], 400)
    own.save(tmp_path / "own.json")
    (tmp_path / "tokenizer.json").write_text(changed(), encoding="utf-8")
    for opened, expected in ((open_tokenizer(tmp_path / "own.json"), own), (open_tokenizer(tmp_path), merged())):
        assert list(opened.documents(["x = 1", ""])) == list(expected.documents(["x = 1", ""]))
        assert opened.vocab_size == expected.vocab_size
    with pytest.raises(TokenizerError, match="cannot read"):
        open_tokenizer(tmp_path / "nowhere")


@every_real
def test_a_real_tokenizer_writes_our_conversation_as_its_template_does(name: str, file: Path) -> None:
    tokenizer = loaded(file)
    form = FORMATS[name](tokenizer, TOOLS)
    ids = conversation(form, tokenizer)
    expected = expected_text(name, tokenizer)
    assert tokenizer.decode(ids) == expected.replace("«", "").replace("»", "")
    assert ids == read_expected(expected, tokenizer, SPECIALS)
    # Outside of what a text names, the model's own library finds the same tokens in the whole.
    published = Tokenizer.from_file(str(file))
    calm = expected.partition("«")[0]
    assert read_expected(calm, tokenizer, SPECIALS) == published.encode(calm, add_special_tokens=False).ids


@every_file
@settings(max_examples=80, deadline=None)
@given(text=texts, data=st.data())
def test_a_real_vocabulary_spells_any_text_and_no_special_token(file: Path, text: str, data: st.DataObject) -> None:
    tokenizer = loaded(file)
    ids = tokenizer.encode(text)
    # Qwen's tokenizers normalise, so their text is compared after that.
    assert tokenizer.decode(ids) in (text, unicodedata.normalize("NFC", text))
    assert not markers(tokenizer, ids)
    sampled = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=20))
    assert isinstance(tokenizer.decode(sampled), str)
