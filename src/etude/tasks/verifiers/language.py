"""A restricted subset of Python for tests and examples that an agent writes, in tasks that grade what these do when
run.

Code in this subset can call the library under test and compare results. It has no access to source, bytecode, frames,
files, environment or clock. So its outcome depends on the library's behaviour alone, and what it reports from the box
can be trusted. The check works on the syntax tree, outside of any box, and refuses everything that is not known to be
harmless.
"""

from __future__ import annotations

import ast
import re
import unittest
from collections.abc import Iterator, Mapping

_Found = Iterator[tuple[ast.AST, str]]

MODULES = {
    name: frozenset(words.split())
    for name, words in {
        "unittest": "TestCase",
        "random": "Random",
        "collections": "Counter OrderedDict defaultdict deque namedtuple",
        "datetime": "date datetime time timedelta timezone MINYEAR MAXYEAR",
        "decimal": "Decimal",
        "fractions": "Fraction",
        "itertools": "accumulate chain combinations count cycle groupby islice pairwise permutations product repeat",
        "math": "ceil e floor gcd inf isclose isinf isnan lcm nan pi prod sqrt",
        "string": "ascii_letters ascii_lowercase ascii_uppercase digits punctuation whitespace",
        "textwrap": "dedent indent",
    }.items()
}
"""The modules that may be imported, each with the names that may be used from it. None of these names gives access to
another module, executes a string, or takes an attribute's name as a string."""
_NAMES = re.compile(
    r"""__.* | breakpoint | compile | delattr | dir | eval | exec | exit | getattr | globals | hash | hasattr | help
    | id | input | locals | memoryview | open | quit | setattr | type | vars | load_tests""",
    re.VERBOSE,
)
_INTERNAL_ATTRIBUTES = re.compile(r"__.*|(f|co|tb|gi|cr|ag)_.*")
"""Forbidden attributes that lead from a value to its code: dunder names, and those of frames, code, tracebacks and
generators."""
_REFUSED = re.compile(
    r"""_.* | format | format_map | mro | today | now | utcnow | fromtimestamp
    | loadTests.*""",
    re.VERBOSE,
)
"""Further attributes that are forbidden, with a few harmless exceptions (`_harmless`): private names, `mro`, clocks,
and functions that look up an attribute by a string."""
_OF_TEST_CASE = frozenset(
    name
    for name in (*dir(unittest.TestCase()), "_feedErrorsToResult", "_addSkip", "_addDuration")
    if not name.startswith("__")
)
_FIXTURES, _USABLE = (
    frozenset(words.split())
    for words in (
        "setUp tearDown setUpClass tearDownClass maxDiff longMessage failureException id shortDescription",
        """
        setUp tearDown setUpClass tearDownClass maxDiff longMessage failureException id shortDescription
        assertAlmostEqual assertCountEqual assertDictEqual assertEqual assertFalse assertGreater assertGreaterEqual
        assertIn assertIs assertIsInstance assertIsNone assertIsNot assertIsNotNone assertLess assertLessEqual
        assertListEqual assertMultiLineEqual assertNotAlmostEqual assertNotEqual assertNotIn assertNotIsInstance
        assertNotRegex assertRaises assertRaisesRegex assertRegex assertSequenceEqual assertSetEqual assertTrue
        assertTupleEqual addCleanup addClassCleanup countTestCases debug doCleanups enterClassContext enterContext
        fail skipTest subTest
        """,
    )
)
"""Attributes of TestCase that a test class may define, and those that tests may use. The other attributes take or
return results, which hold the source lines of tracebacks (`run`, `defaultTestResult`), or tell lines of the library
(`assertLogs`, `assertWarns`)."""
_SELF_NAMES = frozenset(("self", "cls"))
_PLAIN = re.compile(r"(?:[^{}]|\{\{|\}\}|\{\w*(?:![rsa])?(?::[^{}]*)?\})*")
"""Matches a format string without attribute or item access."""
_MAIN = "if __name__ == '__main__':\n    unittest.main()"


def problems(source: str, library: Mapping[str, frozenset[str]], where: str = "") -> list[str]:
    """Return a message for everything in the source that the restricted language forbids, with its line number.
    `library` maps the modules under test to the names that may be imported from them. `where` starts each message."""
    try:
        tree = ast.parse(source)
        tree.body = [node for node in tree.body if ast.unparse(node) != _MAIN]
        found = list(_violations(tree, {**MODULES, **library}))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return [f"{where}: not Python: {error}"]
    return [f"{where}:{getattr(node, 'lineno', 1)}: {what}" for node, what in found]


def module_name(path: str) -> str:
    """Return the dotted module name of a Python file. `path` is relative to the import root."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def own_names(source: str) -> frozenset[str]:
    """Return the public names that a module defines itself, without those it imports."""
    names: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            names |= stored_names(node)
    return frozenset(name for name in names if not name.startswith("_"))


def names_in(tree: ast.AST) -> set[str]:
    nodes = list(ast.walk(tree))
    return {node.id for node in nodes if isinstance(node, ast.Name)} | {
        node.attr for node in nodes if isinstance(node, ast.Attribute)
    }


def stored_names(tree: ast.AST) -> set[str]:
    """Return the names that a syntax tree assigns."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _violations(tree: ast.Module, modules: Mapping[str, frozenset[str]]) -> _Found:
    bound: dict[str, str] = {}
    """Imported modules, by the name that each has in this code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                # `import a.b` binds a, which gives access to more than b.
                reaches = "." in alias.name and not alias.asname
                if alias.name not in modules or reaches or _NAMES.fullmatch(alias.asname or ""):
                    yield node, f"{alias.name} may not be imported"
                bound[alias.asname or alias.name] = alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                allowed = modules.get(node.module or "", frozenset()) if not node.level else frozenset()
                if alias.name not in allowed or _NAMES.fullmatch(alias.asname or ""):
                    yield node, f"{node.module}.{alias.name} may not be imported"
    accessed = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        yield from _forbidden_names(node)
        if isinstance(node, ast.Name) and node.id in bound and id(node) not in accessed:
            yield node, f"the module {node.id} may only be used with an attribute"
        elif isinstance(node, ast.Attribute):
            base = node.value
            of = modules.get(bound[base.id]) if isinstance(base, ast.Name) and base.id in bound else None
            if node.attr not in of if of is not None else not _harmless(node):
                yield node, f"{ast.unparse(node)} may not be used"


def _forbidden_names(node: ast.AST) -> _Found:
    if isinstance(node, ast.Name) and _NAMES.fullmatch(node.id):
        yield node, f"{node.id} may not be used"
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        if _NAMES.fullmatch(node.name) and node.name != "__init__":
            yield node, f"{node.name} may not be defined"
        if isinstance(node, ast.ClassDef):
            if node.keywords:
                yield node, "a class may have no keywords"
            for name in sorted(_class_level_names(node) & (_OF_TEST_CASE - _FIXTURES)):
                yield node, f"{name} may not be defined in a class"
    elif isinstance(node, ast.MatchClass):
        for name in node.kwd_attrs:
            if _INTERNAL_ATTRIBUTES.fullmatch(name) or _REFUSED.fullmatch(name):
                yield node, f"{name} may not be matched"


def _class_level_names(node: ast.ClassDef) -> set[str]:
    """Return the names that a class's body binds as attributes of the class, however it does so."""
    found: set[str] = set()
    waiting: list[ast.AST] = list(node.body)
    while waiting:
        part = waiting.pop()
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(part.name)
            continue  # Names below it are not the class's.
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            found.add(part.id)
        elif isinstance(part, ast.alias):
            found.add((part.asname or part.name).partition(".")[0])
        elif isinstance(part, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and part.name:
            found.add(part.name)
        elif isinstance(part, ast.MatchMapping) and part.rest:
            found.add(part.rest)
        waiting.extend(ast.iter_child_nodes(part))
    return found


def _harmless(node: ast.Attribute) -> bool:
    base = node.value
    if _INTERNAL_ATTRIBUTES.fullmatch(node.attr) or node.attr in _OF_TEST_CASE - _USABLE:
        return False
    if isinstance(base, ast.Name) and base.id in _SELF_NAMES and node.attr.startswith("_"):
        # A test may use private attributes of `self` and `cls`, except those that unittest uses.
        return not node.attr.startswith(("_test", "_outcome", "_get", "_call", "_type"))
    if node.attr == "format" and isinstance(base, ast.Constant) and isinstance(base.value, str):
        return bool(_PLAIN.fullmatch(base.value))
    return not _REFUSED.fullmatch(node.attr)
