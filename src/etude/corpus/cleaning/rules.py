"""What is done to the files of one source: which are dropped and why, and what is redacted in those that stay."""

from __future__ import annotations

import fnmatch
from collections import Counter
from dataclasses import dataclass
from pathlib import PurePosixPath

from etude.corpus.cleaning.generated_code import (
    GENERATED_NAMES,
    has_few_letters,
    is_marked,
    is_minified,
    is_table,
    looks_generated,
)
from etude.corpus.cleaning.languages import language_of, parses
from etude.corpus.cleaning.licences import allows, wanted_names
from etude.corpus.cleaning.redaction import without_secrets
from etude.corpus.document import Found
from etude.recipe.corpus import CodeRecipe

REASONS = {
    "path": "hidden, installed or excluded",
    "language": "of another language",
    "size": "too small or too large",
    "table": "a row of a table without a text",
    "encoding": "not UTF-8 text",
    "licence": "of another licence, or of none that is known",
    "generated": "generated, minified, or data rather than code",
    "syntax": "does not parse",
    "duplicate": "the text of an earlier document, apart from whitespace",
    "near duplicate": "similar to an earlier document",
    "contaminated": "holds code of a task",
}
"""Why a file is dropped, in the order of the checks."""
INSTALLED = frozenset(("site-packages", "dist-packages", "_bundled", "node_modules", "__pycache__", "build", "dist"))
"""Folders of packages that were installed or built."""
_VENDORED = INSTALLED | {"vendor", "third_party", "thirdparty", "bower_components", "target", ".venv", "venv"}
_SMALLEST = 50


@dataclass(frozen=True, slots=True)
class PythonRules:
    """The rules of "stdlib" and `corpus.folders`, whose readers have chosen by name and size: Python that parses."""

    def refuses_name(self, name: str, size: int, language: str = "") -> str:
        return ""

    def clean(self, found: Found, redacted: Counter[str]) -> tuple[str, str]:
        assert isinstance(found.data, bytes)
        text = _text(found.data, "utf-8")
        if text is None:
            return "encoding", ""
        if looks_generated(text):
            return "generated", ""
        return ("", text) if parses(text, "python") else ("syntax", "")


@dataclass(frozen=True, slots=True)
class GeneratedRules:
    """The rules of generated documents: everything is kept as it is."""

    def refuses_name(self, name: str, size: int, language: str = "") -> str:
        return ""

    def clean(self, found: Found, redacted: Counter[str]) -> tuple[str, str]:
        assert isinstance(found.data, str)
        return "", found.data


@dataclass(frozen=True, slots=True)
class CodeRules:
    """The rules of a named source."""

    languages: tuple[str, ...]
    licences: tuple[str, ...]
    exclude: tuple[str, ...]
    max_bytes: int

    @classmethod
    def of(cls, recipe: CodeRecipe, max_bytes: int) -> CodeRules:
        return cls(
            tuple(recipe.languages), tuple(sorted(wanted_names(recipe.licences))), tuple(recipe.exclude), max_bytes
        )

    def refuses_name(self, name: str, size: int, language: str = "") -> str:
        """Return the reason to drop a file by its path and size, or "". `language` is what a table tells."""
        folders = PurePosixPath(name).parts[:-1]
        if _VENDORED.intersection(folders) or any(part.startswith(".") for part in (*folders, name.rpartition("/")[2])):
            return "path"
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.exclude):
            return "path"
        if language_of(name, language) not in self.languages:
            return "language"
        if GENERATED_NAMES.fullmatch(name.rpartition("/")[2]):
            return "generated"
        return "" if _SMALLEST <= size <= self.max_bytes else "size"

    def clean(self, found: Found, redacted: Counter[str]) -> tuple[str, str]:
        """Return (the reason to drop a file, ""), or ("", its text without secrets)."""
        assert found.data is not None
        text = _text(found.data, "utf-8-sig")
        if text is None:
            return "encoding", ""
        language = language_of(found.name, found.language)
        if self.licences and not allows(self.licences, text, found.licences):
            return "licence", ""
        if is_marked(text) or is_minified(text) or is_table(text) or has_few_letters(text):
            return "generated", ""
        if not parses(text, language):
            return "syntax", ""
        return "", without_secrets(text, redacted)


Rules = PythonRules | GeneratedRules | CodeRules


def _text(data: bytes | str, encoding: str) -> str | None:
    """Return a file's text with Unix line ends; None for what is no text."""
    try:
        text = data.decode(encoding) if isinstance(data, bytes) else data.encode().decode()
    except UnicodeError:
        return None
    return None if "\0" in text and encoding != "utf-8" else text.replace("\r\n", "\n").replace("\r", "\n")
