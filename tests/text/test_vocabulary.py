from __future__ import annotations

import json
import string
import subprocess
import sys
from pathlib import Path

import pytest

from etude.text import Tokenizer, TokenizerError
from etude.text.vocabulary import FORMAT, MINIMUM, learn, load_vocabulary


def test_learning_depends_on_counts_not_on_order_of_the_texts(code: str, transcript: str) -> None:
    assert learn([code, transcript], 512) == learn([transcript, code], 512)


def test_learning_does_not_depend_on_the_hash_seed(code: str, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text(code)
    program = "import sys; from etude.text.vocabulary import learn; print(learn(open(sys.argv[1]), 512))"
    runs = {
        subprocess.run(
            [sys.executable, "-c", program, str(text)], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1


def test_the_size_is_what_was_asked_for_when_there_are_words_enough() -> None:
    words = " ".join(a + b + c for a in string.ascii_lowercase for b in "aeiou" for c in string.ascii_lowercase)
    for size in (MINIMUM, 512, 1024):
        assert Tokenizer.train([words], size).vocab_size == size


def test_frequent_words_are_kept_and_others_can_be_spelled(code: str) -> None:
    tokenizer = Tokenizer.train(["price " * 50 + code], 1024)
    assert "price" in tokenizer.vocabulary.words
    assert set(string.ascii_letters) <= set(tokenizer.vocabulary.words)
    assert tokenizer.decode(tokenizer.encode("Qwxyz")) == "Qwxyz"


def test_too_small_a_vocabulary_is_refused(code: str) -> None:
    with pytest.raises(TokenizerError, match="at least 400, found 399"):
        learn([code], 399)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", "not JSON"),
        ("[]", "expected format 'etude-tokenizer/1', found None"),
        (json.dumps({"format": "etude-tokenizer/2"}), "found 'etude-tokenizer/2'"),
        (json.dumps({"format": FORMAT, "punctuation": [], "words": []}), "damaged: KeyError"),
        (json.dumps({"format": FORMAT, "punctuation": [["odd", "x"]], "words": [], "pieces": []}), "damaged"),
        (json.dumps({"format": FORMAT, "punctuation": [], "words": ["a", "a"], "pieces": []}), "occurs twice"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_clear_line(tmp_path: Path, document: str, message: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(document)
    with pytest.raises(TokenizerError, match=message) as caught:
        load_vocabulary(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"cannot read tokenizer .*No such file"):
        load_vocabulary(tmp_path / "none.json")
