"""Words, variables and patterns of a Dockerfile, beside a shell and a plain reference."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.sandbox.images.build.patterns import Ignored, compile_pattern
from etude.sandbox.images.build.variables import expand, expand_document, split_words

KNOWN = {"a": "one", "b": "two words", "empty": "", "path": "/usr/lib/x.tar.gz", "_1": "under"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$ax", ""),
        ("\\$a \\\\$a", "$a \\one"),
        ("'$a' \"$a\" '\"' \"'\"", "$a one \" '"),
        ('"\\$a \\x \\" \\\\"', '$a \\x " \\'),
        ("${a:-x}${missing:-x}${empty:-x}${empty-x}", "onexx"),
        ("${a:+x}${missing:+x}${empty:+x}${empty+x}", "xx"),
        ("${missing:-'a }' \"}\"}", "a } }"),
        ("${path#*/} ${path##*/} ${path%.*} ${path%%.*}", "usr/lib/x.tar.gz x.tar.gz /usr/lib/x.tar /usr/lib/x"),
        ("a$ b", "a$ b"),
        ("$_1$1", "under"),
        ("é$a", "éone"),
        ("end\\", "end"),
    ],
)
def test_expansion(text: str, expected: str) -> None:
    assert expand(text, KNOWN) == expected


def test_another_escape_character() -> None:
    assert expand("c:\\$a`$a", KNOWN, "`") == "c:\\one$a"


def test_documents_keep_quotes_and_most_escapes() -> None:
    assert expand_document("'$a' \"$a\" \\n \\$a \\\\ ${a}", KNOWN) == "'one' \"one\" \\n $a \\ one"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("'open", "' that is not closed"),
        ('"open', '" that is not closed'),
        ("${a", "what follows a is not known"),
        ("${a:-x", "${ without }"),
        ("${}", "${ without a name"),
        ("${a:x}", "is not known"),
        ("${a/b/c}", "is not known"),
        ("${missing:?give it}", "missing has no value: give it"),
        ("${missing?}", "missing has no value: it must be given"),
        ("${a:-" * 60, "within each other"),
    ],
)
def test_what_cannot_be_expanded(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        expand(text, KNOWN)


_PIECE = st.sampled_from(["$a", "${b}", "${empty}", "x", "é", "/", ".", "\\$", "\\\\", "\\x", "$", "$missing"])
_QUOTED = st.lists(_PIECE, max_size=3).map("".join)
_MODIFIED = st.builds(
    "${{{}{}{}}}".format,
    st.sampled_from(["a", "b", "empty", "missing", "path"]),
    st.sampled_from([":-", "-", ":+", "+", "#", "##", "%", "%%"]),
    st.sampled_from(
        ["", "x", "$a", "${b}", "*", "?", "*/", ".*", "/*", "'q r'", '"$a"', "${missing:-z}", "one", "[a-z]"]
    ),
)
_TEXT = st.lists(_PIECE | _MODIFIED | _QUOTED.map('"{}"'.format) | st.sampled_from(["'$a'", "'q r'"]), max_size=6)


# $$, $"..." and $'...' mean something to a shell alone.
@given(_TEXT.map("".join).filter(lambda text: not re.search(r"""\$[$"']""", text)))
@settings(max_examples=60, deadline=None)
def test_expansion_is_a_shells(text: str) -> None:
    script = f"set -f; IFS=; printf %s {text}"
    shell = subprocess.run(
        ["bash", "-c", script], env={**KNOWN, "PATH": os.defpath, "LC_ALL": "C.UTF-8"}, capture_output=True, check=True
    )
    assert expand(text, KNOWN) == shell.stdout.decode()


@given(st.text(), st.booleans())
@settings(max_examples=300)
def test_any_text_is_expanded_or_refused(text: str, document: bool) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance((expand_document if document else expand)(text, KNOWN), str)


@given(st.lists(st.text(st.sampled_from("ab \t'\"$\\"), min_size=1).filter(lambda word: word.strip())))
def test_words_that_are_quoted_stay_whole(words: list[str]) -> None:
    escaped = ["".join(f"\\{char}" for char in word) for word in words]
    text = "  ".join(escaped)
    assert split_words(text) == escaped
    assert [expand(word, {}) for word in split_words(text)] == words


# -- patterns


def reference(pattern: str, text: str) -> bool:
    """By trying: * and ? within a name, nothing else."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        return reference(pattern[1:], text) or (bool(text) and text[0] != "/" and reference(pattern, text[1:]))
    return (
        bool(text)
        and (pattern[0] == text[0] or (pattern[0] == "?" and text[0] != "/"))
        and reference(pattern[1:], text[1:])
    )


@given(st.text(st.sampled_from("ab*?/."), max_size=6), st.text(st.sampled_from("ab/."), max_size=6))
@settings(max_examples=300)
def test_patterns_within_names(pattern: str, text: str) -> None:
    assert bool(compile_pattern(pattern).fullmatch(text)) == reference(pattern, text)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("[a-c]x", ["ax", "cx"], ["dx", "x"]),
        ("[^a-c]x", ["dx", "-x"], ["ax", "/x"]),
        ("[]a]", [], []),
        ("a\\*b", ["a*b"], ["axb"]),
        ("[a\\-]", ["-", "a"], ["b"]),
        ("**/x", ["x", "a/x", "a/b/x"], ["ax", "x/a"]),
        ("a/**", ["a/b", "a/b/c"], ["a", "b/a"]),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b"], ["ab", "a/xb"]),
        ("*.md", [".md", "x.md"], ["a/x.md"]),
    ],
)
def test_patterns_of_ignore_files(pattern: str, yes: list[str], no: list[str]) -> None:
    if not yes:
        with pytest.raises(ValueError, match="needs a"):
            compile_pattern(pattern, across=True)
        return
    compiled = compile_pattern(pattern, across=True)
    assert [text for text in [*yes, *no] if compiled.fullmatch(text)] == yes


@pytest.mark.parametrize("pattern", ["[", "[a", "[a-", "[c-a]", "a\\", "[\\", "[-a]"])
def test_bad_patterns(pattern: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        compile_pattern(pattern)


@given(st.text(), st.booleans())
@settings(max_examples=300)
def test_any_pattern_compiles_or_is_refused(pattern: str, across: bool) -> None:
    with contextlib.suppress(ValueError):
        compile_pattern(pattern, across=across).fullmatch("a/b")


def test_ignore_files() -> None:
    ignored = Ignored.from_text("\ufeff# no\n\n  *.log  \n/build/\n!build/keep\n**/tmp\na/../b\n!x.log\n.\n")
    out = ["y.log", "build", "build/x", "tmp", "c/d/tmp", "c/tmp/x", "b", "b/c"]
    kept = ["a/y.log", "build/keep", "build/keep/x", "x.log", "a", "# no"]
    assert [path for path in [*out, *kept] if ignored.excludes(path)] == out
    assert ignored.has_exceptions
    assert not Ignored.from_text("a").has_exceptions
    for text in ("!", "[", "a\n[b"):
        with pytest.raises(ValueError, match=r"^line \d:"):
            Ignored.from_text(text)
