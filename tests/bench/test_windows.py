"""Every token is scored once, with at least half a window before it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from etude.bench.plain_text import scored_ids
from etude.bench.windows import rolling_windows
from etude.text import Tokenizer


@given(st.integers(0, 300), st.integers(2, 40))
def test_every_token_is_scored_once_after_half_a_window(length: int, context: int) -> None:
    windows = list(rolling_windows(length, context))
    assert [token for w in windows for token in range(w.first, w.end)] == list(range(1, length))
    for window in windows:
        assert window.end - window.start <= context
        assert window.start == 0 or window.first - window.start >= context - context // 2


def test_all_bytes_are_scored_after_the_token_that_begins_a_document() -> None:
    tokenizer = Tokenizer.train(["def größe(x):\n    return x\n" * 9], 500)
    ids, size = scored_ids(tokenizer, "def größe")
    assert (ids[0], tokenizer.decode(ids[1:]), size) == (tokenizer.special.bos, "def größe", 11)


class Bare:
    """A vocabulary of bytes; `around` are the tokens that begin and end a document."""

    vocab_size = 300

    def __init__(self, *around: int) -> None:
        self.around = around

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def documents(self, texts):
        from etude.text import TokenizerError

        if not self.around:
            raise TokenizerError("no token ends a document")
        return ([*self.around[:-1], *text.encode(), self.around[-1]] for text in texts)

    def text(self, document) -> str:
        return bytes(token for token in document if token < 256).decode()


def test_without_a_token_that_begins_one_the_end_of_the_document_before_is_read() -> None:
    assert scored_ids(Bare(257), "ab") == ([257, 97, 98], 2)
    assert scored_ids(Bare(256, 257), "ab") == ([256, 97, 98], 2)
    assert scored_ids(Bare(), "ab") == ([97, 98], 1)
