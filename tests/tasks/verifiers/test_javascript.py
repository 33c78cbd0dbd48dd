"""Tests of JavaScript files, found by tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.tasks.verifiers.tests import javascript
from etude.tasks.verifiers.tests.rewriting import compose, copy_of, report_edit, rewritten_literal, source_text
from etude.tasks.verifiers.tests.withholding import ReportingRewrite

find = javascript.test_functions
SOURCE = rb"""// test("not this", () => { assert.equal(f(), 1); });
import test from "node:test";
const pattern = /it("no", [)"]/g, half = a / 2;
const text = `test("nor this", ${ "x" }`;

test("adds (two)", async () => {
  assert.strictEqual(add(1, /* 9, */ 2), 3, "sum");
  assert.equal(add([1, 2], {a: 4}), -4.5);
  assert.notEqual(add(1, 1), 7);
  assert.deepStrictEqual(list("a,b"), ["a", "b", { n: 1, s: 'z' }]);
  assert.equal(add(0), other(5));
});

describe('outer', () => {
  it('inner', () => { assert.equal(name(), "J") })
  describe("deep", () => { it("deepest", () => { assert.equal(f(), 0x10); }); });
  it(`template`, () => { assert.equal(f(), 1); });
  it("esc\"aped", () => { assert.equal(f(), 1); });
});
re.test("a method", () => { assert.equal(f(), 1) });
"""


def test_tests_are_found_by_name_within_their_suites() -> None:
    assert [found.path for found in find(SOURCE)] == [
        ("adds (two)",),
        ("outer", "inner"),
        ("outer", "deep", "deepest"),
    ]


def test_sites_are_equalities_with_literals() -> None:
    first, inner, deepest = find(SOURCE)
    texts = [SOURCE[slice(*site.literal)].decode() for site in first.sites]
    assert texts == ["3", "-4.5", """["a", "b", { n: 1, s: 'z' }]"""]
    assert [site.value for site in first.sites] == [3, -4.5, ["a", "b", {"n": 1, "s": "z"}]]
    assert [SOURCE[slice(*site.compared)].decode() for site in first.sites] == [
        "add(1, /* 9, */ 2)",
        "add([1, 2], {a: 4})",
        'list("a,b")',
    ]
    assert [site.value for site in inner.sites] == ["J"]
    assert deepest.sites == ()
    assert SOURCE[slice(*first.span)].endswith(b"});")
    assert SOURCE[slice(*inner.span)] == b"""it('inner', () => { assert.equal(name(), "J") })"""
    assert SOURCE[slice(*inner.name)] == b"inner"


@pytest.mark.parametrize(
    ("actual", "given"),
    [('f("x", "ab")', True), ('f({a: ["ab"]})', True), ('f("a" + "b")', False), ("f([1, n], -2)", False)],
)
def test_an_answer_that_was_given_is_known(actual: str, given: bool) -> None:
    (found,) = find(f"""test('a', () => {{ assert.equal({actual}, "ab"); }});""".encode())
    assert ("'ab'" in found.sites[0].given) is given


def test_what_is_told_and_what_is_altered() -> None:
    first, inner, _ = find(SOURCE)
    reported = copy_of(SOURCE, first, "adds", [report_edit(SOURCE, site, "_told", "key") for site in first.sites])
    assert b'_told("key", (add(1, /* 9, */ 2)));' in reported
    assert b'"sum"' not in reported
    assert b"4.5" not in reported
    assert rewritten_literal(inner, inner.sites[0].literal or (0, 0))[1] == b'"J"'
    assert source_text(first.sites[2], ["a", {"n": None}]) == '["a", {"n": null}]'


@pytest.mark.parametrize(
    "text", ["1 + 2", "a", "[b]", "{n}", "{n: f()}", "...x", "`t`", "0x1", "1n", "-x", "[1, 2", "1, 2"]
)
def test_what_is_computed_is_no_site(text: str) -> None:
    found = find(f"test('a', () => {{ assert.equal(f(), {text}); }});".encode())
    assert [site.value for function in found for site in function.sites] == ([1] if text == "1, 2" else [])


@pytest.mark.parametrize("source", [b"test('a', () => {", b"test('a', () => ])", b"test('a'", b"}", b"test", b"\xff("])
def test_what_cannot_be_followed_yields_nothing(source: bytes) -> None:
    assert find(source) == []


WORDS = "for ( const [ ] of ) { } = ; , 1 a b - assert.equal( if `a`"


@given(
    st.text(alphabet="test('\"a`/\\ ){},;=>\n1", max_size=60)
    | st.lists(st.sampled_from(WORDS.split()), max_size=40).map(" ".join)
)
def test_any_text_is_read_without_harm(text: str) -> None:
    for source in (text.encode(), f"test('x', {text} );".encode()):
        for found in find(source):
            assert source[slice(*found.name)].decode() == found.path[-1]
            assert all(site.values for site in found.sites)


TABLES = rb"""
const ROWS = [[5, "fifth"], [6, "sixth"]].reverse();
const PAIRS = [[7, "seventh"]];
test("loops", () => {
  for (const [n, text] of [[1, "first"], [-2, "second"],]) {
    assert.equal(f(n), text, `${n} is ${text}`);
  }
  for (const [n, text] of PAIRS) { assert.strictEqual(f(n), text); }
});
test("names", () => {
  const wanted = { a: ["third"] };
  assert.deepEqual(f(1), wanted);
  const minus = -4;
  assert.equal(f(2), minus);
});
test("left as they are", () => {
  for (const [n, text] of [[1, "b"]]) { if (n) assert.equal(f(n), text); }
  for (const [n, text] of [[1, "c"]]) { assert.equal(f(text), text); }
  for (const [n, text] of [[1, "c"]]) { assert.equal(f(n), text); log(`${text}`); }
  for (const [n, text] of [[1, g()]]) { assert.equal(f(n), text); }
  for (const [n, text] of [[1, "d"], more]) { assert.equal(f(n), text); }
  for (const [n, text] of [[1, "e"]].reverse()) { assert.equal(f(n), text); }
  for (const [n, text] of ROWS) { assert.equal(f(n), text); }
  const given = [1];
  assert.deepEqual(f(given), given);
  let wanted = 3;
  assert.equal(f(3), wanted);
});
"""


def test_names_and_columns_of_tables_are_told_row_by_row() -> None:
    loops, names, left = find(TABLES)
    assert [site.values for site in loops.sites] == [("first", "second"), ("seventh",)]
    assert [site.values for site in names.sites] == [({"a": ["third"]},), (-4,)]
    assert left.sites == ()
    groups, edits_outside = {}, []
    for found in (loops, names):
        reported = ReportingRewrite(TABLES, found, {f"key{n}": site for n, site in enumerate(found.sites)}, "_told")
        groups[found] = [copy_of(TABLES, found, found.path[-1], reported.edits_inside)]
        edits_outside += reported.edits_outside
    made = compose("a.mjs", TABLES, groups, edits_outside)
    assert not any(answer in made for answer in (b"first", b"second", b"third", b"seventh", b"-4"))
    assert b"of [[1, null], [-2, null],]) {" in made
    assert b"const PAIRS = [[7, null]];" in made
    assert b'_told("key1", (f(n)));' in made
