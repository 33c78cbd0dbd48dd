"""A tiktoken file gives the same ids by its tokenizer.json as by tiktoken, whatever its tokens."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.text import TokenizerError, open_tokenizer
from etude.text.byte_letters import LETTERS
from etude.text.pretrained import PretrainedTokenizer
from etude.text.tiktoken_file import PATTERN, convert, tokenizer_json

tokenizers = pytest.importorskip("tokenizers")
tiktoken = pytest.importorskip("tiktoken")
BYTES = [bytes([value]) for value in range(256)]
TEXT = "def größe(a, b):\n    return a + b  # 123456 it's 漢字かな交じり文 don't DON'T ÀÉî Straße’s\r\n\n\t x==1\n"
WORDS = st.lists(
    st.sampled_from(
        [*TEXT.split(" "), " ", "  ", "\n", "\r\n", "漢字", "12", "3", "'s", "'LL", "É", "e\u0301", "ǅ", "ª"]
    )
    | st.text(max_size=4),
    max_size=12,
).map("".join)


def tiktoken_of(ranks: dict[bytes, int], pattern: str) -> Any:
    return tiktoken.Encoding("test", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


@cache
def trained() -> Any:
    """A byte-level vocabulary of the library `tokenizers`."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(PATTERN), "isolated"),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([TEXT * 3, Path(__file__).read_text(encoding="utf-8")], trainer)
    return made


@cache
def ranks_of_trained() -> dict[bytes, int]:
    values = {letter: value for value, letter in enumerate(LETTERS)}
    by_id = sorted(trained().get_vocab().items(), key=lambda item: item[1])
    return {bytes(values[letter] for letter in token): rank for token, rank in by_id}


def publish(folder: Path, ranks: dict[bytes, int], added: dict[int, str], **settings: Any) -> Path:
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()]
    (folder / "tiktoken.model").write_text("".join(lines))
    described = {"tokenizer_class": "TikTokenTokenizer", "eos_token": "[EOS]"}
    described |= {"added_tokens_decoder": {str(i): {"content": name, "special": True} for i, name in added.items()}}
    (folder / "tokenizer_config.json").write_text(json.dumps(described | settings))
    return folder


def test_a_trained_vocabulary_comes_back(tmp_path: Path) -> None:
    """Its merges, from ranks alone; and the ids of any text."""
    ranks = ranks_of_trained()
    written = json.loads(tokenizer_json(ranks, {}, PATTERN))["model"]
    model = json.loads(trained().to_str())["model"]
    assert written["vocab"] == model["vocab"]
    assert written["merges"] == [" ".join(merge) for merge in model["merges"]]
    tokenizer = open_tokenizer(publish(tmp_path, ranks, {421: "<|im_end|>", 423: "[EOS]"}))
    assert isinstance(tokenizer, PretrainedTokenizer)
    assert (tokenizer.vocab_size, tokenizer.special("<|im_end|>"), tokenizer.special("[EOS]")) == (424, 421, 423)
    assert tokenizer.special("<|reserved_token_420|>") == 420

    there = tiktoken_of(ranks, PATTERN)

    @settings(max_examples=200)
    @given(WORDS)
    def holds(text: str) -> None:
        ids = tokenizer.encode(text)
        assert ids == there.encode(text, disallowed_special=())
        assert tokenizer.decode(ids) == text

    holds()


SIGNS = ["a", "B", "É", "ǅ", "漢", "か", "1", " ", "\n", "'", "s", "=", "\u0301"]


@cache
def ranks_of_pairs() -> dict[bytes, int]:
    """All pairs of signs, so that a cut between any two of them shows."""
    signs = [sign.encode() for sign in SIGNS]
    parts = [sign[:length] for sign in signs for length in range(2, len(sign) + 1)]
    return {
        token: rank
        for rank, token in enumerate(dict.fromkeys([*BYTES, *parts, *(a + b for a in signs for b in signs)]))
    }


@settings(max_examples=200)
@given(st.lists(st.sampled_from(SIGNS), max_size=14).map("".join))
def test_text_is_cut_where_tiktoken_cuts_it(text: str) -> None:
    tokenizer, there = of_pairs()
    assert tokenizer.encode(text) == there.encode(text)


@cache
def of_pairs() -> tuple[PretrainedTokenizer, Any]:
    return PretrainedTokenizer(tokenizer_json(ranks_of_pairs(), {}, PATTERN)), tiktoken_of(ranks_of_pairs(), PATTERN)


def test_the_pattern_is_the_published_one() -> None:
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(PATTERN), "isolated")
    text = "漢字かな don't HTTPServer's 12345 x==1;\n\n  y  "
    found = [piece for piece, _ in split.pre_tokenize_str(text)]
    words = ["漢字", "かな", " don't", " HTTPServer's", " ", "123", "45", " x", "==", "1", ";\n\n", " ", " y", "  "]
    assert found == words


@settings(max_examples=150)
@given(
    tokens=st.lists(st.text("ab", min_size=2, max_size=5), unique=True, max_size=12),
    texts=st.lists(st.text("ab", max_size=12), max_size=6),
)
def test_so_does_a_vocabulary_that_no_training_makes(tokens: list[str], texts: list[str]) -> None:
    """Tokens in any order, also those that no joining makes."""
    ranks = {token: rank for rank, token in enumerate([*BYTES, *(token.encode() for token in tokens)])}
    tokenizer = PretrainedTokenizer(tokenizer_json(ranks, {}, r"\p{L}+"))
    there = tiktoken_of(ranks, r"\p{L}+")
    for text in texts:
        assert tokenizer.encode(text) == there.encode(text)


ALL = {token: rank for rank, token in enumerate(BYTES)}


@pytest.mark.parametrize(
    ("ranks", "added", "changes", "says"),
    [
        (ALL, {}, {"tokenizer_class": "QWenTokenizer"}, "class is 'QWenTokenizer'; .* only TikTokenTokenizer's"),
        (ALL | {b"ab": 300}, {}, {}, "after 256 tokens .* its rank 256"),
        (ALL | {b"a" * 600: 256}, {}, {}, "after 256 tokens .* not longer than 512"),
        (ALL, {7: "<a>"}, {}, "adds the ids 7 to 7 to a vocabulary of 256"),
        (ALL, {1 << 40: "<a>"}, {}, "adds the ids"),
        (ALL, {}, {"added_tokens_decoder": {"x": {}}}, "does not name tokens by their ids"),
    ],
)
def test_what_cannot_be_read_is_one_line(
    ranks: dict[bytes, int], added: dict[int, str], changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    publish(tmp_path, ranks, added, **changes)
    with pytest.raises(TokenizerError, match=says) as told:
        convert(tmp_path)
    assert "\n" not in str(told.value)


@given(content=st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = publish(tmp_path_factory.mktemp("any"), {}, {})
    (folder / "tiktoken.model").write_bytes(content)
    with suppress(TokenizerError):
        convert(folder)
