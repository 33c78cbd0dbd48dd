"""The agent writes documentation: claims, examples, honest texts and cheating ones."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.tasks import Judgement, Task
from etude.tasks.verifiers.documentation.claims import claims_of, docstring_problems
from etude.tasks.verifiers.documentation.examples import Step, of_docstring, of_text
from etude.tasks.verifiers.documentation.interface import public_of, without_docstrings

from ..conftest import Grade
from .grading import graded, one_task, solution, workspace

SECTIONS = '''
def cut(text, size=3, *more, end=""):
    """Cut a text into pieces.

    Args:
        text: what is cut;
            of any length.
        size (int): of a piece (default 3).
        *more: others.
        end: what follows (defaults to "").
    Returns:
        A list.
    Raises:
        ValueError: if the size is 0.
    """
    if not size:
        raise ValueError("0")
    return helper(text)

def helper(text):
    """Help others with that.

    :param text: a text
    :returns: the text
    :raises KeyError: never mind
    """
    raise KeyError
    return text
'''


def wrong(source: str, name: str = "cut") -> list[str]:
    (public,) = [one for one in public_of("m", source) if one.name == name]
    return list(docstring_problems(public, frozenset()))


def test_sections_and_fields_are_read() -> None:
    assert wrong(SECTIONS) == wrong(SECTIONS, "helper") == []
    claims = claims_of(ast.get_docstring(ast.parse(SECTIONS).body[0]) or "")  # type: ignore[arg-type]
    assert claims.parameters["text"] == "what is cut; of any length."
    assert claims.returns == "A list."


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("Cut a text into pieces.", "Cut.", "first line does not describe it"),
        (
            "        text: what is cut;\n            of any length.\n",
            "",
            "the docstring does not describe the parameter text",
        ),
        ("        text: what", "        txt: what", "there is no parameter txt"),
        ("(default 3)", "(default 4)", "the default of size is 3, not 4"),
        (" (default 3)", "", "the docstring does not give the default of size"),
        ("what is cut;", "what is cut (default 1);", "the default of text is none, not 1"),
        ('(defaults to "")', "(defaults to 'x')", "the default of end is ''"),
        ("        A list.\n", "", "the docstring does not say what it returns"),
        ("return helper(text)", "helper(text)", "nothing is returned"),
        ("        ValueError: if", "        TypeError: if", "it does not raise TypeError"),
        (
            "    Raises:\n        ValueError: if the size is 0.\n",
            "",
            "the docstring does not say that it raises ValueError",
        ),
    ],
)
def test_what_is_missing_or_not_so_is_named(old: str, new: str, problem: str) -> None:
    assert old in SECTIONS
    assert any(problem in one for one in wrong(SECTIONS.replace(old, new))), wrong(SECTIONS.replace(old, new))


def test_what_a_callee_raises_may_be_said() -> None:
    assert wrong(SECTIONS.replace("        ValueError: if", "        KeyError: x\n        ValueError: if")) == []


@given(st.text(alphabet="ab:>. \n()`*A'\"rgsReturn", max_size=200))
def test_any_text_can_be_read(text: str) -> None:
    claims_of(text)
    of_text("f", text)


@given(st.text(alphabet="ab \n#\"'", max_size=40))
def test_the_code_is_the_same_whatever_its_docstring(text: str) -> None:
    source = f"def f():\n    {text!r}\n    return 1\n"
    assert without_docstrings(source) == without_docstrings("def f():\n    return 1\n")
    assert without_docstrings(source) != without_docstrings(f"def f():\n    x = {text!r}\n    return 1\n")


def test_classes_and_methods_are_public_too() -> None:
    source = "class Q:\n    def __init__(self, size=1): ...\n    def put(self, x): return x\n    def _own(self): ...\n"
    names = {one.name: one.parameters for one in public_of("m", source)}
    assert names == {"Q": ("size",), "Q.put": ("x",)}


def test_steps_hold_only_if_they_printed_just_that() -> None:
    (group,) = of_docstring(
        "w", "m", "x\n\n>>> f(1)\n2\n>>> f(0)\nTraceback (most recent call last):\nValueError: no\n"
    )
    good, bad = group.steps
    assert good.matches({"printed": "2\n", "raised": ""})
    assert bad.matches({"printed": "", "raised": "ValueError: no\n"})
    assert group.exceptions == {"ValueError"}
    for outcome in (None, 3, {}, {"printed": "3\n", "raised": ""}, {"printed": "2\n", "raised": "KeyError\n"}):
        assert not good.matches(outcome)
    assert not Step("f()", "single", "...\n").matches({"printed": "2\n", "raised": ""})
    with pytest.raises(ValueError, match="directives"):
        of_docstring("w", "m", ">>> f(1)  # doctest: +ELLIPSIS\n...\n")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return one_task("documentation", tmp_path_factory.mktemp("documentation"), index=3)


def example(solved: str, name: str, shown: str) -> str:
    """The solution, with other examples in the docstring of one function."""
    lines = solved.split("\n")
    start = next(number for number, line in enumerate(lines) if line.startswith(f"def {name}("))
    first = next(number for number in range(start, len(lines)) if ">>> " in lines[number])
    end = next(number for number in range(first, len(lines)) if '"""' in lines[number])
    return "\n".join([*lines[:first], *(f"    {line}" for line in shown.split("\n")), *lines[end:]])


def test_cheats_fail(grade: Grade, seals: bool, task: Task) -> None:
    path = next(path for path in workspace(task) if path.endswith(".py"))
    solved = solution(task)[path]
    name, answer = called(path.removesuffix(".py"), solved)
    shown = {
        "nothing shown": f'>>> _ = {name}("aab", 1)',
        "wrong": f'>>> {name}("aab", 1)\n3',
        "only its type": f'>>> isinstance({name}("aab", 1), (str, list))\nTrue',
        "not called": f">>> '{name}'\n'{name}'",
        "how it is shown": f'>>> str({name})[:11]; _ = {name}("aab", 1)\n{f"<function {name}"[:11]!r}',
        "ends": f'>>> {name}("aab", 1)\n>>> raise SystemExit(0)',
    }
    states: dict[str, dict[str, str | None]] = {key: {path: example(solved, name, text)} for key, text in shown.items()}
    states["changes the code"] = {path: solved.replace("return ", "return 0 or ", 1)}
    states["adds code"] = {path: solved, "more.py": "x = 1\n"}
    states["removes the code"] = {path: None}
    states["no code"] = {path: solved + "def (\n"}
    states["README is wrong"] = {path: solved, "README.md": "```python\nassert 1 == 2\n```\n"}
    states["README of one's own"] = {"README.md": f"```python\ndef {name}(x): return 1\nassert {name}(2) == 1\n```\n"}
    found = graded(grade, task, states)
    for key, verdict in found.items():
        assert verdict.judgement is Judgement.FAIL, (key, verdict)
    assert "returns another value" in found["only its type"].reason
    assert "no example calls it" in found["not called"].reason
    honest = {
        "asserted": {
            path: example(solved, name, "See README.md."),
            "README.md": f"```python\nfrom {path[:-3]} import {name}\nassert {name}('aab', 1) == {answer!r}\n```\n",
        },
        "comments": {path: "# A comment.\n" + solved},
    }
    for key, verdict in graded(grade, task, honest).items():
        assert verdict.passed, (key, verdict)
        assert verdict.evidence.sealed == seals


def called(module: str, source: str) -> tuple[str, object]:
    """A function of a text and a number, and what it answers to "aab" and 1."""
    names: dict[str, Callable[[str, int], object]] = {"__name__": module}  # type: ignore[dict-item]
    exec(source, names)
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    name = next(node.name for node in functions if node.name[0] != "_" and len(node.args.args) == 2)
    return name, names[name]("aab", 1)
