"""No need ever rules out a text that its pattern matches."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.harness.search.trees import LINES

from etude.harness.search.grams import FULLEST, fold, hashes, signature
from etude.harness.search.query import ANY, All, Literal, Need, Pattern, Some, literals, need_of
from etude.harness.search.shards import holds, shards_of


def shown(need: Need) -> object:
    if isinstance(need, Literal):
        return need.text.decode()
    parts = [shown(part) for part in need.parts]
    return {"all": parts} if isinstance(need, All) else {"some": sorted(parts, key=str)}


@pytest.mark.parametrize(
    ("pattern", "need"),
    [
        ("netif_carrier", "netif_carrier"),
        (r"EXPORT_SYMBOL\(kvm", "export_symbol(kvm"),
        (r"struct \w+_device \*", {"all": ["struct ", "_device *"]}),
        ("(read|write)_once", {"some": ["read_once", "write_once"]}),
        ("colou?rs", {"some": ["colors", "colours"]}),
        (r"(alloc\w+|kfree)\(x", {"all": [{"some": ["alloc", "kfree"]}]}),
        ("(?:abab)+cd", {"all": ["abab", "ababcd"]}),
        ("[gs]et_name", {"some": ["get_name", "set_name"]}),
        ("(?i)PROBE", "probe"),
        ("a{3}bc", "aaabc"),
        ("abc", {"all": []}),
        (r"\w+", {"all": []}),
        ("probe|.", {"all": []}),
        (r"probe\p{L}", {"all": []}),
        ("prob(?i)e", {"all": []}),
        ("probe[a&&b]", {"all": []}),
        ("pro(be", {"all": []}),
    ],
)
def test_what_a_match_must_hold(pattern, need):
    found = shown(need_of(Pattern(pattern)))
    assert found == need or {"all": [found]} == need


def test_a_fixed_text_is_taken_as_it_is_and_unicode_case_is_left_to_ripgrep():
    assert shown(need_of(Pattern("probe(.*", fixed=True))) == "probe(.*"
    assert need_of(Pattern("\u00e9t\u00e9s", ignore_case=True)) == ANY
    assert shown(need_of(Pattern("\u00e9t\u00e9s"))) == "\u00e9t\u00e9s"
    assert need_of(Pattern("abcd\nefgh", fixed=True)) == ANY


@pytest.mark.parametrize(
    "pattern",
    [
        "(" * 49 + "a+" + ")+" * 49,
        "(" * 40 + "abcd" + "){0,4}" * 40,
        "[ab]" * 500,
        "a{9999999}" * 9,
        "(" * 10**5,
        "x" * 10**4,
        "x" * 10**6,
    ],
    ids=lambda pattern: pattern[:8],
)
def test_no_pattern_takes_long(pattern):
    begun = time.process_time()
    assert len(list(literals(need_of(Pattern(pattern))))) <= 200
    assert time.process_time() - begun < 2


@given(st.text("abk(_ \n\u00e9\u017f", max_size=300), st.integers(0, 300), st.integers(0, 40))
def test_a_signature_denies_nothing_that_the_text_holds(text, start, length):
    data = text.encode()
    piece = data[start : start + length]
    bits = signature(data)
    assert len(hashes(piece)) == max(0, len(piece) - 3)
    for asked in (piece, piece.swapcase()):
        assert holds(bits, Literal(fold(asked), hashes(asked)))


def test_signatures_are_as_short_as_they_may_be():
    short, long = signature(b"abcdefgh"), signature(bytes(range(256)) * 400 + b"x" * 400_000)
    assert (len(short), len(long)) == (256, 1024)
    assert long.mean() <= FULLEST


@given(st.lists(LINES, max_size=20), LINES.filter(lambda text: len(text) > 3))
@example([], "probe")
def test_a_shard_answers_as_its_signatures_do(texts, asked):
    signatures = [(number, signature(text.encode())) for number, text in enumerate(texts)]
    literal = Literal(fold(asked.encode()), hashes(asked.encode()))
    for need in (literal, Some((literal, Literal(b"mask", hashes(b"mask")))), All((literal,)), ANY):
        found = sorted(file for shard in shards_of(signatures) for file in shard.may_hold(need).tolist())
        assert found == [number for number, bits in signatures if holds(bits, need)]
