"""Licences, by SPDX name: read from a line of a file, from a table's column, or recognised by the text of a LICENSE.

Nothing is guessed: a licence that is not recognised is `unknown`, which no list of wanted licences holds.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from pathlib import PurePosixPath

from etude.corpus.cleaning.languages import language_of

PERMISSIVE = frozenset(
    """0bsd apache-2.0 blueoak-1.0.0 bsd-2-clause bsd-3-clause bsl-1.0 cc0-1.0 isc mit mit-0 ncsa psf-2.0 python-2.0
    unlicense upl-1.0 wtfpl zlib""".split()  # noqa: SIM905
)
UNKNOWN = "unknown"
_FILE = re.compile(r"(licen[cs]e|copying|unlicense)([-._].{0,40})?", re.IGNORECASE)
_TAG = re.compile(r"SPDX-License-Identifier:[ \t]{0,8}([\w.+() -]{1,200})")
_HEAD = 2000
_MOST_BYTES = 1 << 20
_LONGEST = 60
"""Words of the longest expression that is read."""
_GNU = (
    ("gnu affero general public license", "agpl-3.0"),
    ("gnu lesser general public license", "lgpl"),
    ("gnu library general public license", "lgpl"),
    ("gnu general public license", "gpl"),
)
_PHRASES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("apache license", "version 2.0"), "apache-2.0"),
    (("mozilla public license", "2.0"), "mpl-2.0"),
    (("eclipse public license",), "epl"),
    (("boost software license",), "bsl-1.0"),
    (("permission is hereby granted, free of charge", "permission notice shall be included"), "mit"),
    (("permission is hereby granted, free of charge",), "mit-0"),
    (("permission to use, copy, modify, and/or distribute this software", "provided that the above"), "isc"),
    (("permission to use, copy, modify, and distribute this software", "provided that the above"), "isc"),
    (("permission to use, copy, modify, and/or distribute this software",), "0bsd"),
    (("redistribution and use in source and binary forms", "endorse or promote"), "bsd-3-clause"),
    (("redistribution and use in source and binary forms",), "bsd-2-clause"),
    (("this is free and unencumbered software",), "unlicense"),
    (("altered source versions must be plainly marked",), "zlib"),
    (("python software foundation license version 2",), "psf-2.0"),
    (("cc0 1.0 universal",), "cc0-1.0"),
)


def is_licence_file(name: str, size: int) -> bool:
    return (
        size <= _MOST_BYTES
        and bool(_FILE.fullmatch(PurePosixPath(name).name))
        and language_of(name) in ("", "markdown", "html")
    )


def licence_of_text(text: str) -> str:
    """Recognise the licence whose text this is."""
    words = " ".join(text.lower().split())
    # The GNU licences name one another, so the one that is named first counts.
    named = [(place, name) for phrase, name in _GNU if (place := words.find(phrase)) >= 0]
    if named and min(named)[0] < _HEAD:
        name = min(named)[1]
        version = re.search(r"version ([23])", words)
        return name if name == "agpl-3.0" or not version else f"{name}-{version[1]}.0"
    return next((name for phrases, name in _PHRASES if all(phrase in words for phrase in phrases)), UNKNOWN)


def nearest(name: str, by_folder: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the licences of the closest folder above a file that has any. The root is "."."""
    return next((by_folder[str(folder)] for folder in PurePosixPath(name).parents if str(folder) in by_folder), ())


def tagged(text: str) -> str:
    """Return the licence that a file's first lines name, or ""."""
    found = _TAG.search(text, 0, _HEAD)
    return found[1].strip() if found else ""


def wanted_names(licences: Iterable[str]) -> frozenset[str]:
    """Return the names that a recipe's list stands for, in lower case."""
    names: set[str] = set()
    for licence in licences:
        names |= PERMISSIVE if licence.lower() == "permissive" else {_plain(licence)}
    return frozenset(names)


def allows(wanted: Collection[str], text: str, known: Collection[str]) -> bool:
    """Whether a file may be kept: by the licence that it names itself, or else by all those known of it, if any."""
    expressions = [own] if (own := tagged(text)) else known
    return bool(expressions) and all(_allowed(expression, wanted) for expression in expressions)


def _allowed(expression: str, wanted: Collection[str]) -> bool:
    """Whether an SPDX expression leaves the choice of a wanted licence. Of "A AND B" both must be wanted."""
    words = deque(re.findall(r"[()]|[^\s()]+", expression.lower().replace("/", " or ")))
    if len(words) > _LONGEST:
        return False
    return _any_of(words, wanted) and not words


def _any_of(words: deque[str], wanted: Collection[str]) -> bool:
    found = _all_of(words, wanted)
    while words and words[0] == "or":
        words.popleft()
        found |= _all_of(words, wanted)
    return found


def _all_of(words: deque[str], wanted: Collection[str]) -> bool:
    found = _one(words, wanted)
    while words and words[0] == "and":
        words.popleft()
        found &= _one(words, wanted)
    return found


def _one(words: deque[str], wanted: Collection[str]) -> bool:
    if not words:
        return False
    if (word := words.popleft()) == "(":
        found = _any_of(words, wanted)
        return bool(words) and words.popleft() == ")" and found
    if words and words[0] == "with":  # an exception permits more than the licence
        words.popleft()
        return bool(words) and bool(words.popleft()) and _plain(word) in wanted
    return _plain(word) in wanted


def _plain(name: str) -> str:
    base = name.lower().strip()
    return base.removesuffix("+").removesuffix("-only").removesuffix("-or-later")
