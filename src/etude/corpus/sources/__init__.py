"""Where documents come from: folders, git repositories, tables, the standard library and generators.

Sources are listed as parts, each of which one process reads (see Part). Listing reads no file but licences.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from etude.corpus.cleaning import CodeRules, GeneratedRules, PythonRules, Rules
from etude.corpus.document import Part
from etude.corpus.errors import CorpusError
from etude.corpus.sources.folders import folder_parts, python_parts, stdlib_parts, walk
from etude.corpus.sources.generated import generated_parts
from etude.corpus.sources.git import git_parts, is_repository
from etude.corpus.sources.tables import ENDINGS, is_table, table_parts
from etude.recipe.corpus import CodeRecipe, CorpusRecipe

__all__ = ["Source", "code_sources", "parts_of"]


class Source(NamedTuple):
    """A part, with the name of its source and what is done to its files."""

    name: str
    rules: Rules
    part: Part
    ordered: bool = False
    """Whether its files are to be put in the order of their imports."""

    def wanted(self, name: str, size: int) -> bool:
        return not self.rules.refuses_name(name, size)

    def size(self) -> int:
        """Bytes to read, for progress and estimates."""
        return self.part.size(self.wanted)


def parts_of(recipe: CorpusRecipe, documents: Path | None) -> Iterator[Source]:
    """Yield the parts of all sources. `documents` is required for the source "generated"."""
    yield from code_sources(recipe)
    if "generated" in recipe.sources:
        if documents is None:
            raise CorpusError('corpus.sources has "generated" but no folder of generated documents was given')
        for part in generated_parts(documents):
            yield Source("generated", GeneratedRules(), part)


def code_sources(recipe: CorpusRecipe) -> Iterator[Source]:
    """Yield the parts of all sources of code."""
    if "stdlib" in recipe.sources:
        for part in stdlib_parts(recipe.max_file_bytes):
            yield Source("stdlib", PythonRules(), part)
    for folder in recipe.folders:
        for part in python_parts(Path(folder).expanduser(), recipe.max_file_bytes):
            yield Source("folder", PythonRules(), part)
    for name, code in recipe.code.items():
        rules = CodeRules.of(code, recipe.max_file_bytes)
        for found in _code_parts(name, code):
            yield Source(name, rules, found, ordered=code.join_bytes > 0)


def _code_parts(name: str, recipe: CodeRecipe) -> Iterator[Part]:
    path = Path(recipe.path).expanduser()
    if path.is_dir() and is_repository(path):
        yield from git_parts(path, recipe.revision, path.absolute().name)
        return
    if path.is_file() and is_table(path):
        yield from table_parts(path, named=True)
        return
    if not path.is_dir():
        raise CorpusError(
            f"corpus.code.{name}.path: {path} is neither a folder, a git repository nor a table ({', '.join(ENDINGS)})"
        )
    files: list[Path] = []
    for folder, below, names in walk(path):
        for inner in [inner for inner in below if is_repository(folder / inner)]:
            below.remove(inner)
            yield from git_parts(folder / inner, recipe.revision, (folder / inner).relative_to(path).as_posix())
        for file in (folder / inner for inner in names):
            if is_table(file):
                yield from table_parts(file, named=False)
            else:
                files.append(file)
    yield from folder_parts(path, files)
