"""Which files of a named source are dropped and why, and what is redacted in those that stay."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.corpus.cleaning import CodeRules
from etude.corpus.cleaning.languages import LANGUAGES, header, language_of, parses, unchecked
from etude.corpus.cleaning.redaction import without_secrets
from etude.corpus.document import Found
from etude.recipe.corpus import CodeRecipe
from etude.trace.redact import Redactor
from etude.trace.redact.patterns import patterns

GOOD = "def area(width, height):\n    return width * height\n" * 8
GO = "package a\n\nfunc area(width int, height int) int {\n\treturn width * height\n}\n"


def rules(**fields):
    return CodeRules.of(CodeRecipe(path="x", **fields), 5_000)


@pytest.mark.parametrize(
    ("name", "size", "reason"),
    [
        ("src/a.py", 100, ""),
        ("tests/test_a.py", 100, ""),
        ("src/a.kt", 100, "language"),
        ("Makefile", 100, "language"),
        (".github/a.py", 100, "path"),
        ("src/.a.py", 100, "path"),
        ("web/node_modules/a.js", 100, "path"),
        ("db/migrations/a.py", 100, "path"),
        ("api_pb2.py", 100, "generated"),
        ("app.min.js", 100, "generated"),
        ("src/a.py", 49, "size"),
        ("src/a.py", 5_001, "size"),
    ],
)
def test_a_path_and_a_size_may_be_enough(name, size, reason):
    assert rules(exclude=["*/migrations/*"]).refuses_name(name, size) == reason


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.py", GOOD.encode(), ""),
        ("a.py", b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode(), ""),
        ("a.py", GOOD.encode() + b"\xe9", "encoding"),
        ("a.py", GOOD.encode() + b"\0", "encoding"),
        ("a.py", GOOD + "\ud800", "encoding"),
        ("a.py", "# @generated. Do not edit.\n" + GOOD, "generated"),
        ("a.js", "var a = 1;" * 101, "generated"),
        ("a.js", "x;\n" * 50 + "y" * 1001, "generated"),
        ("a.py", "a = [\n" + "    1, 2, 3, 4,\n" * 9 + "]\n", "generated"),
        ("a.py", "#" * 40 + "\n" + "# a" + " =" * 99, "generated"),
        ("a.py", GOOD + "def (\n", "syntax"),
        ("a.py", GOOD + "return 1\n", ""),
        ("a.go", GO, ""),
        ("a.go", GOOD, "syntax"),
    ],
)
def test_a_text_may_be_dropped(name, data, reason):
    found, text = rules().clean(Found(name, data, 0, "o"), Counter())
    assert found == reason
    assert text.removesuffix("return 1\n") == ("" if reason else GO if name == "a.go" else GOOD)


def test_every_grammar_that_there_is_reads_its_language():
    assert unchecked(set(LANGUAGES)) == sorted(
        set(LANGUAGES) - {"python", *(n for n, one in LANGUAGES.items() if one.grammar)}
    )
    samples = {
        "javascript": "let a = (b) => b + 1;\n",
        "typescript": "let a: number = 1;\n",
        "ruby": "def a(b)\n  b\nend\n",
        "rust": "fn a(b: u8) -> u8 { b }\n",
        "java": "class A { int b; }\n",
        "c": "int a(int b) { return b; }\n",
        "cpp": "template <class T> T a(T b) { return b; }\n",
        "go": GO,
    }
    for language, text in samples.items():
        assert parses(text, language)
        assert not parses("]) 1 }} ((\n" * 5 + text, language)


@pytest.mark.parametrize(
    ("told", "language"), [("C++", "cpp"), ("TypeScript", "typescript"), ("Brainfuck", "c"), ("", "c")]
)
def test_a_table_tells_the_language_and_else_the_name_does(told, language):
    assert language_of("a.h", told) == language


@given(st.text(), st.sampled_from([*LANGUAGES, ""]))
def test_a_header_is_one_line(name, language):
    assert header(name, language).splitlines() == [header(name, language).removesuffix("\n")]


def test_secrets_and_personal_data_are_redacted_and_the_same_text_always_alike():
    key = "AKIA" + "QWERTYUIOPASDFGH"
    text = GOOD + f'# by jane.doe@company.org, in /home/jane/src\nkey = "{key}"\nagain = "{key}"\n'
    counts = Counter()
    (_, first), (_, second) = (rules().clean(Found("a.py", text, 0, "o"), counts) for _ in range(2))
    assert first == second
    assert not [secret for secret in ("jane", key) if secret in first]
    assert first.count("[redacted:aws-key-1]") == 2
    assert counts["email"] == 2


def test_no_pattern_is_left_out_that_its_examples_need():
    for pattern in patterns():
        for hit in pattern.hits:
            text = hit.replace("«", "").replace("»", "")
            assert without_secrets(text, Counter()) == Redactor().redact(text) != text


@given(st.text('sk-pA@/.e:="1\nKé'))
def test_texts_are_redacted_as_a_redactor_does(text):
    assert without_secrets(text, Counter()) == Redactor().redact(text)


@given(st.text(), st.binary())
def test_any_text_and_any_bytes_are_answered(text, data):
    for found in (text, data):
        reason, cleaned = rules(licences=["mit"]).clean(Found("a.py", found, 0, "o"), Counter())
        assert reason
        assert cleaned == ""
