"""Languages: which one a file is in, how its comments look, and whether it parses.

Python is parsed by the interpreter, eight other languages by tree-sitter's grammars (the extra `search`). A language
without a grammar, or whose grammar is not installed, is not checked.
"""

from __future__ import annotations

import ast
import importlib
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath
from typing import Any

_BROKEN_SHARE = 0.1
"""Share of a file's bytes that a grammar may fail to parse: grammars lag behind languages, and macros confuse them."""
_DEEPEST = 200


@dataclass(frozen=True, slots=True)
class Language:
    suffixes: tuple[str, ...]
    comment: tuple[str, str]
    """What begins and ends a comment of one line."""
    names: tuple[str, ...] = ()
    """What tables call the language, in lower case, beside its own name."""
    grammar: tuple[str, str] | None = None
    """Module of the grammar, and its function."""


_SLASHES, _HASH, _DASHES = ("// ", ""), ("# ", ""), ("-- ", "")
LANGUAGES = {
    "python": Language((".py", ".pyi"), _HASH),
    "javascript": Language((".js", ".jsx", ".mjs", ".cjs"), _SLASHES, ("jsx",), ("tree_sitter_javascript", "language")),
    # The grammar of .tsx also reads .ts, but for casts in angle brackets.
    "typescript": Language(
        (".ts", ".tsx", ".mts", ".cts"), _SLASHES, ("tsx",), ("tree_sitter_typescript", "language_tsx")
    ),
    "go": Language((".go",), _SLASHES, (), ("tree_sitter_go", "language")),
    "rust": Language((".rs",), _SLASHES, (), ("tree_sitter_rust", "language")),
    "java": Language((".java",), _SLASHES, (), ("tree_sitter_java", "language")),
    # Headers may be either's: the grammar of C++ reads both.
    "c": Language((".c", ".h"), _SLASHES, (), ("tree_sitter_cpp", "language")),
    "cpp": Language(
        (".cc", ".cpp", ".cxx", ".hh", ".hpp", ".hxx"), _SLASHES, ("c++",), ("tree_sitter_cpp", "language")
    ),
    "ruby": Language((".rb",), _HASH, (), ("tree_sitter_ruby", "language")),
    "csharp": Language((".cs",), _SLASHES, ("c#", "c-sharp")),
    "kotlin": Language((".kt", ".kts"), _SLASHES),
    "scala": Language((".scala",), _SLASHES),
    "swift": Language((".swift",), _SLASHES),
    "php": Language((".php",), ("<?php // ", " ?>")),
    "lua": Language((".lua",), _DASHES),
    "shell": Language((".sh", ".bash"), _HASH, ("bash", "sh")),
    "sql": Language((".sql",), _DASHES),
    "html": Language((".html", ".htm", ".vue", ".svelte"), ("<!-- ", " -->"), ("vue", "svelte")),
    "css": Language((".css", ".scss", ".less"), ("/* ", " */"), ("scss", "less")),
    "config": Language((".json", ".toml", ".yaml", ".yml"), _HASH, ("json", "toml", "yaml")),
    "markdown": Language((".md", ".rst"), ("<!-- ", " -->"), ("restructuredtext",)),
}
_BY_SUFFIX = {suffix: name for name, language in LANGUAGES.items() for suffix in language.suffixes}
_BY_NAME = {alias: name for name, language in LANGUAGES.items() for alias in (name, *language.names)}


def language_of(name: str, told: str = "") -> str:
    """Return the language of a file, by what a table tells or else by the file's name; "" if it is none of ours."""
    return _BY_NAME.get(told.casefold()) or _BY_SUFFIX.get(PurePosixPath(name).suffix.lower(), "")


def header(name: str, language: str) -> str:
    """Return a comment that names a file, as a line of its own."""
    begin, end = LANGUAGES[language].comment if language in LANGUAGES else _HASH
    return f"{begin}{' '.join(name.split())}{end}\n"


def parses(text: str, language: str) -> bool:
    if language == "python":
        return _is_python(text)
    parser = _parser(language)
    if parser is None:
        return True
    data = text.encode("utf-8", "replace")
    return _broken_bytes(parser.parse(data).root_node) <= _BROKEN_SHARE * len(data)


def unchecked(languages: set[str]) -> list[str]:
    """Return those of the languages that `parses` cannot check here."""
    return sorted(name for name in languages if name != "python" and _parser(name) is None)


def _is_python(text: str) -> bool:
    """Whether a text parses. Compiling it is tried first: that is four times as fast as a tree of Python's objects, and
    what cannot be compiled, such as a `return` outside of a function, may still parse."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about old string escapes do not matter here
        for flags in (0, ast.PyCF_ONLY_AST):
            try:
                compile(text, "<text>", "exec", flags, dont_inherit=True)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                continue
            return True
    return False


@cache
def _parser(language: str) -> Any:
    grammar = LANGUAGES[language].grammar if language in LANGUAGES else None
    if grammar is None:
        return None
    try:
        core, module = importlib.import_module("tree_sitter"), importlib.import_module(grammar[0])
    except ModuleNotFoundError:
        return None
    return core.Parser(core.Language(getattr(module, grammar[1])()))


def _broken_bytes(root: Any) -> int:
    broken, waiting = 0, [(root, 0)]
    while waiting:
        node, depth = waiting.pop()
        if not node.has_error:
            continue
        if node.type == "ERROR" or depth == _DEEPEST:
            broken += node.end_byte - node.start_byte
        else:
            waiting.extend((child, depth + 1) for child in node.children)
    return broken
