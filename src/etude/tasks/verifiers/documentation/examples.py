"""Parses examples in docstrings and text files into steps that run one after another, each with the output it should
print."""

from __future__ import annotations

import ast
import doctest
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

_FENCED = re.compile(r"^```(?:python|py|pycon)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_DIRECTIVE = re.compile(r"#\s*doctest:")
_CHECKER = doctest.OutputChecker()


class _Parser(doctest.DocTestParser):
    """A doctest parser that is not slow on long runs of white space. It does without the two regular expressions of its
    base class that try every way to divide such a run."""

    _EXCEPTION_RE = re.compile(
        r"""^(?P<hdr> Traceback\ \( (?: most\ recent\ call\ last | innermost\ last) \) : ) [^\S\n]* $
            (?P<stack> .*?)
            ^(?P<msg> \w+ .*)""",
        re.VERBOSE | re.MULTILINE | re.DOTALL,
    )

    def _find_options(self, source: str, name: str, lineno: int) -> dict[int, bool]:
        return {}  # `_steps` refuses examples with options.


_PARSER = _Parser()


@dataclass(frozen=True, slots=True)
class Step:
    source: str
    mode: str
    """Mode of Python's `compile`: "single" prints the value of an expression, "exec" does not."""
    want: str = ""
    """The output that this statement must print. It is not checked if `mode` is "exec"."""
    raised: str = ""
    """The last line of the traceback that this statement must cause; empty if it must not raise."""

    def matches(self, outcome: object) -> bool:
        """Return whether the step did what its example states. `outcome` is the box's report on the step; None if it
        was not reached."""
        if not isinstance(outcome, dict):
            return False
        printed, raised = outcome.get("printed"), outcome.get("raised")
        if not isinstance(printed, str) or not isinstance(raised, str):
            return False
        if self.raised or raised:
            return self.raised.strip() == raised.strip()
        return self.mode == "exec" or _CHECKER.check_output(self.want, printed, 0)


@dataclass(frozen=True, slots=True)
class Group:
    """Statements of examples (steps) that run in the same namespace, such as all examples of one docstring."""

    where: str
    module: str
    """The module whose names the examples can use without importing them; empty for examples of a text file."""
    steps: tuple[Step, ...]

    @property
    def source(self) -> str:
        return "\n".join(step.source for step in self.steps)

    def calls(self, name: str) -> bool:
        """Return whether the group calls a function or method of this name, and mentions it in no other way."""
        mentioned, called = _names_in(self.source)
        return 0 < mentioned[name] == called[name]

    @property
    def exceptions(self) -> frozenset[str]:
        return frozenset(step.raised.partition(":")[0].strip().rpartition(".")[2] for step in self.steps if step.raised)


@lru_cache(maxsize=64)
def _names_in(source: str) -> tuple[Counter[str], Counter[str]]:
    """Count how often each name and attribute is mentioned, and how often it is called. Cached, because each group is
    asked about every public name."""
    mentioned, called = Counter[str](), Counter[str]()
    for node in ast.walk(ast.parse(source)):
        mentioned[_name_of(node)] += 1
        if isinstance(node, ast.Call):
            called[_name_of(node.func)] += 1
    return mentioned, called


def _name_of(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def of_docstring(where: str, module: str, docstring: str) -> list[Group]:
    """Return a docstring's examples as one group, because they share a namespace. Raises ValueError for a malformed
    example or a directive."""
    steps = tuple(_steps(docstring, where))
    return [Group(where, module, steps)] if steps else []


def of_text(where: str, text: str) -> list[Group]:
    """Return the fenced Python blocks of a text, each as a group with a namespace of its own."""
    groups = []
    for number, found in enumerate(_FENCED.finditer(text), 1):
        block = found[1]
        place = f"{where}, block {number}"
        steps = tuple(_steps(block, place)) if ">>>" in block else (Step(block, "exec"),)
        groups.append(Group(place, "", steps))
    return groups


def _steps(text: str, where: str) -> Iterator[Step]:
    for example in _PARSER.get_examples(text, where):
        if _DIRECTIVE.search(example.source):
            raise ValueError(f"{where}: examples may not have directives: {example.source.strip()}")
        yield Step(example.source, "single", example.want, example.exc_msg or "")
