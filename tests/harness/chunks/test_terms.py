from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from etude.harness.chunks.terms import stem, terms


def test_identifiers_count_whole_and_by_their_parts() -> None:
    assert terms("readHTTPHeaders") == ["read", "http", "header", "readhttpheaders"]
    assert terms("_max_file_bytes2") == ["max", "fil", "byt", "_max_file_bytes2"]
    assert terms("the class of a node") == ["nod"]


def test_forms_of_a_word_meet() -> None:
    for forms in ("write writes writing", "query queries", "file files filed", "stop stops stopping stopped", "class"):
        assert len({stem(word) for word in forms.split()}) == 1


def test_data_is_no_word() -> None:
    assert terms("x" * 1000 + " queries") == ["query"]


@given(st.text())
def test_any_text_has_terms(text: str) -> None:
    assert all(terms(text))
    assert terms(text) == terms(text)
