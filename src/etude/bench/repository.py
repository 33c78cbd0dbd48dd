"""The files of the user's repository, cleaned and ordered as a corpus has them, and stretches of them to read."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, get_args
from zlib import crc32

from etude.bench.errors import BenchError
from etude.corpus.cleaning import header, language_of
from etude.corpus.repository_order import File, imports_of, joined
from etude.corpus.sources import Source, code_sources
from etude.corpus.sources.git import is_repository, run_git
from etude.recipe.corpus import CodeRecipe, CorpusRecipe, Language

_STRETCHES = 4
_MOST_BYTES = 100_000_000
"""Of a larger repository, only some files are read, chosen by their names."""
_ABBREVIATED = 12


class SourceFile(NamedTuple):
    name: str
    text: str
    """Without secrets."""

    @property
    def size(self) -> int:
        return len(self.text.encode())


@dataclass(frozen=True, slots=True)
class Repository:
    path: Path
    commit: str
    """The commit whose files are read; empty for a folder without a repository."""
    files: tuple[SourceFile, ...]
    """Each after those that it imports."""

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def __str__(self) -> str:
        at = f" at {self.commit[:_ABBREVIATED]}" if self.commit else ", a folder without git"
        return f"{self.path.name}{at}: {len(self.files):,} files of code, {self.size / 1e3:,.0f} kB"


def read_repository(
    path: Path,
    revision: str = "HEAD",
    languages: Sequence[str] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Repository:
    """Read a git repository's commit, or a folder. `languages` are those to read; none means the corpus' usual ones.
    `progress` is called with the bytes read and those to read."""
    if not path.is_dir():
        raise BenchError(f"--repository {path}: there is no such folder")
    if unknown := [name for name in languages if name not in get_args(Language)]:
        raise BenchError(f"--language {unknown[0]}: expected one of {', '.join(get_args(Language))}")
    path = path.resolve()
    chosen = {"languages": list(languages)} if languages else {}
    code = CodeRecipe.model_validate({"path": str(path), "revision": revision, **chosen})
    sources = list(code_sources(CorpusRecipe(sources=[], code={"repository": code})))
    sizes, done = [source.size() for source in sources], 0
    texts: list[str] = []
    files: list[File] = []
    redacted: Counter[str] = Counter()
    for source, size in zip(sources, sizes, strict=True):
        for found in source.part.read(partial(_wanted, source, _MOST_BYTES / max(1, sum(sizes)))):
            reason, text = ("size", "") if found.data is None else source.rules.clean(found, redacted)
            if not reason:
                imports = imports_of(text, language_of(found.name))
                files.append(File(len(texts), found.name, imports, len(text)))
                texts.append(text)
        done += size
        progress(done, sum(sizes))
    if not files:
        raise BenchError(f"--repository {path} has no files of code in {', '.join(code.languages)}: name --language")
    (order,) = joined(files, sum(file.size for file in files))
    commit = run_git(path, "rev-parse", f"{revision}^{{commit}}").decode().strip() if is_repository(path) else ""
    return Repository(path, commit, tuple(SourceFile(file.name, texts[file.number]) for file in order))


def _wanted(source: Source, share: float, name: str, size: int) -> bool:
    return source.wanted(name, size) and crc32(name.encode("utf-8", "replace")) / 2**32 < share


def stretches(files: Sequence[SourceFile], budget: int, seed: int) -> list[str]:
    """Return about `budget` bytes of the files, joined: all of them, or a few stretches of files that follow one
    another, spread evenly from a place that the seed decides. A stretch may end within a file, after a whole line."""
    total = sum(file.size for file in files)
    if total <= budget:
        return [joined_text(files)]
    ends = list(accumulate(file.size for file in files))
    offset = random.Random(f"stretches:{seed}").random()
    firsts = {bisect_right(ends, total * (number + offset) / _STRETCHES) for number in range(_STRETCHES)}
    return [_beginning(files[first:], budget // len(firsts)) for first in sorted(firsts)]


def _beginning(files: Sequence[SourceFile], size: int) -> str:
    """Return the first lines of the joined files, up to `size` bytes, but at least one."""
    enough = next((n for n, held in enumerate(accumulate(file.size for file in files), 1) if held >= size), len(files))
    data = joined_text(files[:enough]).encode()
    return data[: data.rfind(b"\n", 0, size) + 1 or data.index(b"\n") + 1].decode()


def joined_text(files: Sequence[SourceFile]) -> str:
    """Join files as the corpus does: each after a comment with its name."""
    return "".join(header(file.name, language_of(file.name)) + file.text.rstrip("\n") + "\n\n" for file in files)
