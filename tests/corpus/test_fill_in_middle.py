"""A rearranged document holds the same text; what is rearranged follows from the text alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.text.formats.tiny import merged

from etude.corpus import CorpusError, Document
from etude.corpus.fill_in_middle import FillInMiddle, Marks
from etude.text import Tokenizer

TOKENIZER = merged()
FREE = TOKENIZER.vocab_size
FIM = FillInMiddle(Marks(FREE, FREE + 1, FREE + 2), {"mine": 0.5})


@given(st.text("ab \n<|é", max_size=40))
def test_the_text_is_kept_and_cut_at_the_marks(text):
    (ids,) = TOKENIZER.documents([text])
    moved = FIM.moved(Document(text, "code", "mine", "o", "n"), ids, TOKENIZER)
    assert moved == FIM.moved(Document(text, "other", "mine", "p", "m"), ids, TOKENIZER)
    assert FIM.moved(Document(text, "code", "stdlib", "o", "n"), ids, TOKENIZER) == ids
    if moved != ids:
        first, second, third = (moved.index(mark) for mark in FIM.marks)
        prefix, suffix, middle = moved[first + 1 : second], moved[second + 1 : third], moved[third + 1 : -1]
        assert "".join(TOKENIZER.text(part) for part in (prefix, middle, suffix)) == text
        assert moved[:first] == ids[:first]
        assert moved[-1] == ids[-1]


def test_its_share_is_rearranged():
    texts = [f"text {n}" for n in range(400)]
    documents = zip(texts, TOKENIZER.documents(texts), strict=True)
    moved = [FIM.moved(Document(text, "code", "mine", "o", "n"), ids, TOKENIZER) != ids for text, ids in documents]
    assert 160 < sum(moved) < 240


def test_a_tokenizer_without_the_tokens_is_refused():
    for tokenizer in (Tokenizer.train(["a b"], 400), TOKENIZER):
        with pytest.raises(CorpusError, match=r"corpus\.code\.mine\.fill_in_middle: the tokenizer has no tokens"):
            FillInMiddle.of(tokenizer, {"mine": 0.5})
