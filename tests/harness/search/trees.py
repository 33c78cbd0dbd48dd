"""Small folders that try ripgrep's rules, and patterns that try the reader of patterns."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import strategies as st

from etude.harness.search import BadPattern, Found, NoRipgrep, Pattern, Ripgrep
from etude.harness.search.grep import Grep

try:
    RIPGREP = Ripgrep()
except NoRipgrep as missing:
    pytest.skip(str(missing), allow_module_level=True)

IN_MEMORY = os.environ.get("PYTEST_DEBUG_TEMPROOT")
"""Where the tests' temporary files are kept; None for the usual place."""
WORDS = ["static", "probe", "Probe", "PROBE", "device", "mask", "skip", "kbd", "_", "(", " ", "\t", "0x8086", "é", "É"]
LINES = st.lists(st.sampled_from([*WORDS, "abcd", "\u017ftatic", "mas\u212a", "\r"]), max_size=5).map("".join)
NAMES = ["a.c", "b.c", "c.h", "sub/a.c", "sub/deep/d.c", ".hidden", ".config/x.c", "build/o.c", "we[i]rd !#.c", "é.c"]
PLAIN = ["static", "probe", "device", "mask", "skip", "kbd", "abcd", "PROBE", "0x8086", "_", "é", " ", "-", "s", "k"]
PLAIN += ["]", r"\(", r"\t", r"\."]
CLASSES = [".", r"\w", r"\d", r"\s", "[ab]", "[a-d]", "[^x]", "[Pp]", "[0-9]", "[]a]", "[a-]", "[s-t]", r"[\w.]"]
CLASSES += [r"[\]x]"]


def _encoded(text: str, how: str) -> bytes:
    match how:
        case "utf-16":
            return text.encode("utf-16")
        case "mark":
            return b"\xef\xbb\xbf" + text.encode()
        case "zero":
            return text.encode() + b"\0" + text.encode()
        case "broken":
            return b"\xff" + text.encode() + b"\xfe\xe9"
        case _:
            return text.encode()


TEXTS = st.builds(
    _encoded,
    st.lists(LINES, max_size=6).map("\n".join),
    st.sampled_from(["plain"] * 6 + ["utf-16", "mark", "zero", "broken"]),
)
RULES = st.lists(
    st.sampled_from(["*.h", "/build", "build/", "!.hidden", "!.config", "!c.h", "sub/*", "!sub/deep", "a.c", "*", "#"]),
    max_size=3,
).map(lambda lines: "".join(f"{line}\n" for line in lines).encode())
FILES = st.dictionaries(st.sampled_from(NAMES), TEXTS, max_size=6)
RULE_FILES = st.dictionaries(st.sampled_from([".gitignore", ".ignore", "sub/.ignore", ".rgignore"]), RULES, max_size=2)
GLOBS = st.lists(st.sampled_from(["*.c", "!a.c", "sub/**", "!sub", ".hidden", "*.[ch]"]), max_size=2)


def _regexes() -> st.SearchStrategy[str]:
    plain, classes = st.sampled_from(PLAIN), st.sampled_from(CLASSES)
    anchors = st.sampled_from(["^", "$", r"\b", r"\B"])

    def deeper(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        group = st.sampled_from(["(", "(?:", "(?P<n>", "(?i:", ""])
        return st.one_of(
            st.lists(inner, min_size=1, max_size=4).map("".join),
            st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
            st.tuples(group, inner).map(lambda two: f"{two[0]}{two[1]}{')' if two[0] else ''}"),
            st.tuples(inner, st.sampled_from(["?", "*", "+", "{2}", "{1,3}", "{0}", "{2,}", "+?", "{1,2}?"])).map(
                lambda two: f"(?:{two[0]}){two[1]}"
            ),
        )

    return st.recursive(st.one_of(plain, plain, plain, classes, anchors), deeper, max_leaves=12)


PATTERNS = st.builds(
    Pattern,
    st.one_of(
        _regexes(), _regexes().map(lambda text: f"(?i){text}"), st.text("abcdest(){}[]\\|*+?^$.k -é", max_size=8)
    ),
    fixed=st.booleans(),
    ignore_case=st.booleans(),
    word=st.booleans(),
)


def write(root: Path, files: dict[str, bytes]) -> None:
    for name, text in files.items():
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text)


def outcome(search, *arguments, **options) -> list[tuple[bytes, bytes]] | str:
    try:
        found: Found = search(*arguments, **options)
    except BadPattern:
        return "bad pattern"
    return list(found.files)


def same(grep: Grep, pattern: Pattern, globs: list[str] = ()) -> None:
    """What the index leads to is what ripgrep finds alone."""
    alone = outcome(RIPGREP.search, os.fsencode(grep.root), pattern, globs=globs)
    assert outcome(grep.search, pattern, globs=globs) == alone
