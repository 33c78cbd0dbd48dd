"""Removes remarks from test files that are placed in a box: comments, docstrings of tests, and bare strings. They may
tell in words what a test expects.

Docstrings of helpers stay, because code under test may read them: a command's help text is often its docstring.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator

from etude.tasks.verifiers.tests.javascript_tokens import closing_of, tokens_of

_PYTHON = re.compile(
    rb"""(?P<text>\"{3}(?:[^\\]|\\.)*?\"{3} | '{3}(?:[^\\]|\\.)*?'{3} | "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*')
    | (?P<comment>\#[^\n]*)""",
    re.VERBOSE | re.DOTALL,
)
_USES_DOCSTRINGS = re.compile(rb"__doc__|doctest|getdoc")
_COMMENT = re.compile(rb"//[^\n]*|/\*.*?\*/", re.DOTALL)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_JAVASCRIPT = (".js", ".mjs", ".cjs")


def without_remarks(path: str, source: bytes) -> bytes:
    """Return a test file without its remarks. A file that cannot be read, or would mean something else without them, is
    returned unchanged; then all of its text counts as known to the code under test."""
    if path.endswith(".py"):
        return _python(source)
    return _javascript(source) if path.endswith(_JAVASCRIPT) else source


def _python(source: bytes) -> bytes:
    try:
        bare = _without_comments(source)
        tree = ast.parse(bare)
        if ast.dump(tree) != ast.dump(ast.parse(source)):
            return source
        if _USES_DOCSTRINGS.search(source):
            return bare
        stripped = _cut(bare, [(span, _empty(bare[slice(*span)])) for span in _remark_spans(tree, bare)])
        ast.parse(stripped)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source
    return stripped


def _without_comments(source: bytes) -> bytes:
    # A first line `#!...` stays: it makes the file a program.
    spans = [match.span() for match in _PYTHON.finditer(source) if match["comment"]]
    return _cut(source, [(span, b"") for span in spans if span[0] or not source.startswith(b"#!")])


def _remark_spans(tree: ast.Module, source: bytes) -> Iterator[tuple[int, int]]:
    """Yield the spans of string constants that are statements by themselves, without docstrings of helpers."""
    starts = [0, *itertools.accumulate(len(line) for line in source.splitlines(keepends=True))]
    helpers = (node for node in ast.walk(tree) if isinstance(node, (*_FUNCTIONS, ast.ClassDef)) and not _is_test(node))
    kept = {node.body[0] for node in helpers}
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Expr) and node not in kept else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            end = value.end_lineno or value.lineno
            yield starts[value.lineno - 1] + value.col_offset, starts[end - 1] + (value.end_col_offset or 0)


def _is_test(node: ast.AST) -> bool:
    """Return whether a node is a test function, or a class that has one."""
    functions = node.body if isinstance(node, ast.ClassDef) else [node]
    return any(isinstance(one, _FUNCTIONS) and one.name.startswith("test") for one in functions)


def _empty(string: bytes) -> bytes:
    """Return an empty string literal that has as many lines as the literal `string`."""
    return b'"""' + b"\n" * string.count(b"\n") + b'"""'


def _javascript(source: bytes) -> bytes:
    tokens = list(tokens_of(source))
    nested = any(token.kind == "template" and token.text.count(b"${") != token.text.count(b"}") for token in tokens)
    if nested or closing_of(tokens) is None or source.startswith(b"#!"):
        return source  # Without a whole parser, it is uncertain what a comment is here.
    pieces, place = [], 0
    for token in tokens:
        pieces += [_spaces(source[place : token.start]), token.text]
        place = token.end
    return b"".join([*pieces, _spaces(source[place:])])


def _spaces(between: bytes) -> bytes:
    """Remove comments from `between`, the source between two JavaScript tokens. Line breaks stay, since one may end a
    statement."""
    if b"/" not in between:
        return between
    return _COMMENT.sub(lambda found: b" " + b"\n" * found[0].count(b"\n"), between)


def _cut(source: bytes, edits: list[tuple[tuple[int, int], bytes]]) -> bytes:
    pieces, place = [], 0
    for (start, end), text in sorted(edits):
        pieces += [source[place:start], text]
        place = end
    return b"".join([*pieces, source[place:]])
