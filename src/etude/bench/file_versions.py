"""Files with several versions each: from git's history, or made from a file that has too little of it.

The last version is always the file as it is. Invariant: neighbouring versions differ.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from etude.bench.repository import Repository, SourceFile
from etude.corpus.cleaning.redaction import without_secrets
from etude.corpus.errors import CorpusError
from etude.corpus.sources.git import blobs, run_git
from etude.harness.editing.diff import as_text, unified_diff

_LATEST_COMMITS = 2000
_SMALLEST = 200
_SPREAD = 4
"""Files whose history is read, and commits that are read of a file, for each that is needed: some cannot be used."""
_LONGEST_DIFFS = 8
"""Diffs of a file may be this many times as long, together, as the file may be."""
_WORD = re.compile(r"[A-Za-z_]\w+")


@dataclass(frozen=True, slots=True)
class Rebuild:
    """A file to be rebuilt from an earlier version and the diffs since."""

    path: str
    first: str
    diffs: tuple[str, ...]
    final: str
    made: bool
    """Whether the changes were made up, for want of history."""


def rebuilds(
    repository: Repository, count: int, changes: Sequence[int], most_bytes: int, seed: int
) -> list[list[Rebuild]]:
    """Return `count` files, each once per number of changes, in the order of `changes`. All of one file end in the same
    text. The files have at most `most_bytes`; those with enough history come first."""
    small = [file for file in repository.files if _SMALLEST <= file.size <= most_bytes and "\n" not in file.name]
    random.Random(f"files:{seed}").shuffle(small)
    deepest = max(changes)
    changed = _changes_by_path(repository) if count else Counter[str]()
    found: dict[str, list[Rebuild]] = {}
    for file in [file for file in small if changed[file.name] >= deepest][: _SPREAD * count]:
        series = _series(file.name, _history(repository, file, deepest), changes, made=False)
        if len(found) < count and series and sum(map(len, series[-1].diffs)) <= _LONGEST_DIFFS * most_bytes:
            found[file.name] = series
    for file in small:
        if len(found) < count and file.name not in found:
            versions = made_versions(file.text, deepest, random.Random(f"edits:{seed}:{file.name}"))
            found[file.name] = _series(file.name, versions, changes, made=True)
    return list(found.values())


def _series(path: str, versions: Sequence[str], changes: Sequence[int], *, made: bool) -> list[Rebuild]:
    if len(versions) <= max(changes):
        return []
    diffs = [diff_of(path, *pair) for pair in pairwise(versions)]
    return [Rebuild(path, versions[-1 - n], tuple(diffs[len(diffs) - n :]), versions[-1], made) for n in changes]


def diff_of(path: str, before: str, after: str) -> str:
    return unified_diff({path: before.encode()}, {path: after.encode()})


def _changes_by_path(repository: Repository) -> Counter[str]:
    """Return how many of the latest commits changed each path."""
    if not repository.commit:
        return Counter()
    log = run_git(
        repository.path, "log", "--first-parent", "--no-renames", f"-n{_LATEST_COMMITS}", "-z", "--name-only",
        "--format=", repository.commit,
    )  # fmt: skip
    return Counter(name.strip("\n") for name in log.decode("utf-8", "replace").split("\0"))


def _history(repository: Repository, file: SourceFile, changes: int) -> list[str]:
    """Return the file's last versions, oldest first: `changes` and one more, or fewer if it has not as many."""
    log = run_git(
        repository.path, "log", "--first-parent", f"-n{_SPREAD * (changes + 1)}", "--format=%H", repository.commit,
        "--", f":(literal){file.name}",
    )  # fmt: skip
    versions = [file.text]
    with blobs(repository.path) as content:
        for commit in log.decode().split():
            try:
                text = as_text(content(f"{commit}:{file.name}"))
            except CorpusError:
                break  # it did not exist yet
            if text is None:
                break
            text = without_secrets(text.replace("\r\n", "\n").replace("\r", "\n"), Counter())
            if text != versions[-1]:
                versions.append(text)
            if len(versions) > changes:
                break
    return versions[::-1]


def made_versions(text: str, changes: int, random_: random.Random) -> list[str]:
    """Return versions of a text, oldest first, of which the last is the text itself."""
    versions = [text]
    while len(versions) <= changes:
        lines = versions[-1].split("\n")
        earlier = "\n".join(random_.choice(_EDITS)(list(lines), random_))
        if earlier in versions or not earlier.strip():
            earlier = "\n".join([*lines, f"{random_.choice(lines)} {len(versions)}"])
        versions.append(earlier)
    return versions[::-1]


def _without(lines: list[str], random_: random.Random) -> list[str]:
    at = random_.randrange(len(lines))
    del lines[at : at + random_.randint(1, 3)]
    return lines


def _with_copy(lines: list[str], random_: random.Random) -> list[str]:
    at = random_.randrange(len(lines))
    copied = lines[at : at + random_.randint(1, 3)]
    place = random_.randrange(len(lines) + 1)
    return [*lines[:place], *copied, *lines[place:]]


def _moved(lines: list[str], random_: random.Random) -> list[str]:
    at = random_.randrange(len(lines))
    block, rest = lines[at : at + 3], [*lines[:at], *lines[at + 3 :]]
    place = random_.randrange(len(rest) + 1)
    return [*rest[:place], *block, *rest[place:]]


def _renamed(lines: list[str], random_: random.Random) -> list[str]:
    """Replace one word by another of the file, in up to three lines."""
    words = sorted(set(_WORD.findall("\n".join(lines))))
    if len(words) < 2:
        return lines
    old, new = random_.sample(words, 2)
    left = 3
    for place, line in enumerate(lines):
        if left and re.search(rf"\b{old}\b", line):
            lines[place] = re.sub(rf"\b{old}\b", new, line)
            left -= 1
    return lines


_EDITS: tuple[Callable[[list[str], random.Random], list[str]], ...] = (_without, _with_copy, _moved, _renamed)
