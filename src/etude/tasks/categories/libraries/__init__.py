"""Small libraries with documentation and tests, from which tasks of several categories are drawn.

`<name>.py.txt` is the module, `<name>.tests.txt` its unittest suite. The module's first line lists names and synonyms
for them. All tasks made from one library are in the same split, whatever their category.
"""

from __future__ import annotations

import ast
import io
import itertools
import random
import re
import tokenize
from dataclasses import dataclass
from importlib import resources

NAMES = (
    "columns",
    "durations",
    "graphs",
    "intervals",
    "ledger",
    "roman",
    "runs",
    "templates",
    "textgrid",
    "versions",
)
_VARY = "# vary: "
_EXPLAINED = re.compile(r"^ +(>>> .*|\w+:)", re.MULTILINE)
"""Matches an example, or the name of an explained parameter, in a docstring."""
_WORD = re.compile(r"(?<![\w.'\"])[a-z_]+(?![\w'\"])")


@dataclass(frozen=True, slots=True)
class Library:
    module: str
    """Name of the module, which the tests import."""
    source: str
    tests: str

    @property
    def path(self) -> str:
        return f"{self.module}.py"

    @property
    def test_path(self) -> str:
        return f"tests/test_{self.module}.py"


def draw_library(name: str, rng: random.Random, *, whole: bool = False) -> Library:
    """Return a random variant of a library, with other names and its functions in another order. Unless `whole` is set,
    the variant may also lack one function and that function's tests."""
    source, tests = _read(f"{name}.py.txt"), _read(f"{name}.tests.txt")
    words, _, source = source.partition("\n")
    names = {}
    for group in words.removeprefix(_VARY).split(", "):
        word, *others = group.split("|")
        names[word] = rng.choice([word, *others])
    if not whole:
        source, tests = _without_one(source, tests, rng)
    source = _shuffled(source, rng)
    return Library(names[name], _renamed(source, names), _renamed(tests, names))


def public_functions(tree: ast.Module) -> list[ast.FunctionDef]:
    return [node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]


def _read(file: str) -> str:
    return (resources.files(__package__) / file).read_text(encoding="utf-8")


def _renamed(text: str, names: dict[str, str]) -> str:
    """Replace names in code, in docstring examples, and where a docstring explains a parameter. Other prose is left
    alone. An attribute is replaced only if the name before its dot is one of `names` too."""
    starts = [0, *itertools.accumulate(len(line) for line in text.splitlines(keepends=True))]
    edits: list[tuple[int, int, str]] = []
    before = ("", "")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        word = token.string
        if token.type == tokenize.NAME and (before[1] != "." or before[0] in names):
            word = names.get(word, word)
        elif token.type == tokenize.STRING and word.startswith('"""'):
            word = _EXPLAINED.sub(lambda match: _WORD.sub(lambda one: names.get(one[0], one[0]), match[0]), word)
        if word != token.string:
            (row, column), (end_row, end_column) = token.start, token.end
            edits.append((starts[row - 1] + column, starts[end_row - 1] + end_column, word))
        before = (before[1], token.string)
    for start, end, word in reversed(edits):
        text = text[:start] + word + text[end:]
    return text


def _without_one(source: str, tests: str, rng: random.Random) -> tuple[str, str]:
    """Remove a random public function and its tests. If other code mentions the function, remove nothing."""
    tree = ast.parse(source)
    functions = public_functions(tree)
    chosen = rng.choice(functions)
    if any(mentions(node, chosen.name) for node in tree.body if node is not chosen):
        return source, tests
    suites = [node for node in ast.parse(tests).body if isinstance(node, ast.ClassDef)]
    gone = [suite for suite in suites if mentions(suite, chosen.name)]
    return _cut(source, [chosen]), _cut(tests, gone)


def _shuffled(source: str, rng: random.Random) -> str:
    """Shuffle the public functions. Everything before the first one stays where it is."""
    functions = public_functions(ast.parse(source))
    lines = source.splitlines(keepends=True)
    texts = ["".join(lines[node.lineno - 1 : node.end_lineno]) for node in functions]
    head = "".join(lines[: functions[0].lineno - 1])
    rng.shuffle(texts)
    return head + "\n\n".join(texts)


def _cut(text: str, nodes: list[ast.FunctionDef] | list[ast.ClassDef]) -> str:
    """Return the text without these definitions and without the empty lines after each."""
    lines = text.splitlines(keepends=True)
    for node in reversed(nodes):
        end = node.end_lineno or node.lineno
        while end < len(lines) and not lines[end].strip():
            end += 1
        del lines[node.lineno - 1 : end]
    return "".join(lines).rstrip("\n") + "\n"


def mentions(node: ast.AST, name: str) -> bool:
    """Return whether the code uses a name as a variable or an attribute. Strings do not count."""
    return any(
        (isinstance(part, ast.Name) and part.id == name) or (isinstance(part, ast.Attribute) and part.attr == name)
        for part in ast.walk(node)
    )
