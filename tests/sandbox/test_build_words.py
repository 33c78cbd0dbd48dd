"""Words, variables and patterns of a Dockerfile, beside a shell and a plain reference."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.sandbox import ImageError
from etude.sandbox.images.build import patterns
from etude.sandbox.images.build.dockerfile import parse_dockerfile
from etude.sandbox.images.build.instructions import Arg, Env
from etude.sandbox.images.build.patterns import Glob, Ignored
from etude.sandbox.images.build.plan import make_plan
from etude.sandbox.images.build.settings import StageState, apply_setting, declare
from etude.sandbox.images.build.variables import _trimmed, expand, expand_document, split_words
from etude.sandbox.images.image import HOST, Image

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
@settings(max_examples=150)
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
    assert Glob(pattern).matches(text) == reference(pattern, text)


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
            Glob(pattern, across=True)
        return
    compiled = Glob(pattern, across=True)
    assert [text for text in [*yes, *no] if compiled.matches(text)] == yes


@pytest.mark.parametrize("pattern", ["[", "[a", "[a-", "[c-a]", "a\\", "[\\", "[-a]"])
def test_bad_patterns(pattern: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        Glob(pattern)


@given(st.text(), st.booleans())
@settings(max_examples=300)
def test_any_pattern_compiles_or_is_refused(pattern: str, across: bool) -> None:
    with contextlib.suppress(ValueError):
        Glob(pattern, across=across).matches("a/b")


@given(
    st.text(st.sampled_from("ab*?[]!\\\n"), max_size=8),
    st.text(st.sampled_from("ab[]!\\\n"), max_size=8),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=200)
def test_what_is_cut_off(pattern: str, value: str, front: bool, greedy: bool) -> None:
    """The shortest or longest prefix or suffix that fnmatch finds by trying all."""
    cuts = range(len(value) + 1)
    for cut in cuts if front != greedy else reversed(cuts):
        if fnmatch.fnmatchcase(value[:cut] if front else value[cut:], pattern):
            expected = value[cut:] if front else value[:cut]
            break
    else:
        expected = value
    assert _trimmed(value, pattern, front=front, greedy=greedy) == expected


@pytest.mark.parametrize("operator", ["#", "##", "%", "%%"])
def test_cutting_off_takes_no_longer_than_the_text_is(operator: str) -> None:
    for pattern in ("*a" * 50 + "b", "b" + "a*" * 50, "a" * 100 + "b", "*" * 100 + "b", "?" * 100 + "*b"):
        value = "a" * 10_000
        assert expand(f"${{x{operator}{pattern}}}", {"x": value}) == value
    with pytest.raises(ValueError, match="would make it longer by more than"):
        expand(f"${{x{operator}{'a' * 1000}}}", {"x": "a" * 10_000})


@pytest.mark.parametrize("text", ["$a$a", "${a}${a}", "'$'${a:-x}${b:-$a$a}", "${b:-${b:-${b:-$a$a}}}"])
def test_no_text_grows_without_end(text: str) -> None:
    for grow in (expand, expand_document):
        with pytest.raises(ValueError, match="would make it longer by more than 131072 characters"):
            grow(text, {"a": "x" * 100_000})


@pytest.mark.parametrize(
    "start", ["ARG a=xxxxxxxx\n{}FROM host\n", "FROM host\nARG a=xxxxxxxx\n{}", "FROM host\nENV a=xxxxxxxx\n{}"]
)
@pytest.mark.parametrize("line", ["{0} a=$a$a\n", "{0} a=${{a:+$a$a}}\n", "{0} b{1}=$a a=$a$a\n"])
def test_no_dockerfile_grows_without_end(start: str, line: str) -> None:
    """A few lines would have taken all memory of the host."""
    kind = "ENV" if "ENV" in start else "ARG"
    text = start.format("".join(line.format(kind, number) for number in range(60)))
    with pytest.raises((ImageError, ValueError), match="would"):
        states_of(text)


def states_of(text: str) -> list[StageState]:
    """The state of each stage after its ARGs and settings."""
    plan = make_plan(parse_dockerfile(text), "", {})
    states = []
    for stage in plan.needed:
        state = StageState(Image(HOST, ()), plan.dockerfile.escape)
        for instruction in stage.instructions:
            if isinstance(instruction.action, Arg):
                state = declare(state, instruction.action, {}, plan.defaults)
            elif isinstance(instruction.action, Env):
                state = apply_setting(state, instruction.action)
        states.append(state)
    return states


def test_a_dockerfile_has_bounds() -> None:
    with pytest.raises(ImageError, match="Dockerfile:1001: more than 1000 instructions"):
        parse_dockerfile("FROM host\n" + "USER agent\n" * 1000)
    with pytest.raises(ImageError, match="251 variables; at most 250 are possible"):
        parse_dockerfile("FROM host\nENV " + " ".join(f"a{number}=" for number in range(251)))
    with pytest.raises(ValueError, match="more than 4096 variables"):
        states_of("FROM host\n" + "".join(f"ARG {' '.join(f'a{n}_{m}=' for m in range(250))}\n" for n in range(20)))


@given(st.text(st.sampled_from("ab*?/."), max_size=12), st.text(st.sampled_from("ab/.\n"), max_size=12))
@settings(max_examples=300)
def test_many_wildcards_mean_the_same_as_few(pattern: str, text: str) -> None:
    """A pattern with more than a few is not matched by an expression."""
    expression = "".join(patterns._tokens(pattern, across=True))
    glob = Glob(pattern, across=True)
    glob._expression = None
    assert glob.matches(text) == (re.fullmatch(expression, text, re.DOTALL) is not None)


@pytest.mark.parametrize(
    "pattern", ["*a" * 30 + "b", "**/a" * 30 + "/b", "a**" * 30 + "b", "*/" * 30, "[ab]*" * 30 + "c"]
)
def test_no_pattern_takes_long(pattern: str) -> None:
    """Trying all ways to share the text among the wildcards takes longer than this test may."""
    for text in ("a" * 4000, "a/" * 2000, "ab" * 2000 + "/"):
        assert not Glob(pattern, across=True).matches(text)


def test_patterns_have_bounds() -> None:
    for pattern in ("a*" * 65, "a" * 4097):
        with pytest.raises(ValueError, match="has more than"):
            Glob(pattern)
    with pytest.raises(ValueError, match="line 1001: more than 1000 patterns"):
        Ignored.from_text("a\n" * 1001)


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
