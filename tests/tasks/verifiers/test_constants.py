"""What is computed is what Python computes, and nothing is computed that needs more than what is written down."""

from __future__ import annotations

import ast
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.tasks.verifiers.tests.constants import LARGEST, NotConstant, evaluate
from etude.tasks.verifiers.tests.visible_answers import computed_values

KNOWN = {"n": 3, "word": "some", "row": [4, 5]}


def value(text: str) -> Any:
    return evaluate(ast.parse(text, mode="eval").body, KNOWN)


@pytest.mark.parametrize(
    "text",
    [
        "[1] * 3 + row[1:]",
        "{'a': 1} | {**{'b': n}}",
        "f'{word} {n + 1}'",
        "sorted({3, 1}, reverse=True)",
        "word.upper()[::-1]",
        "[i * n for i in range(4)]",
        "{k: v for k, v in zip('ab', row)}",
        "{x for x in row}",
        "(*row, -n)",
        "not n",
        "list(enumerate(word))",
        "'-'.join([word, 'x']).split('-')",
        "dict(a=1)",
        "sum(range(10)) ** 2 // 7 % 5",
        "~n ^ 5 | 8 & n",
        "max(len(word), n) << 2",
        "1 / 4 - .5",
        "str(None) + repr('a')",
        "bytes([1, 2]) + b'x'",
        "set()",
        "10 ** 100",
        "word[-1]",
    ],
)
def test_values_are_those_of_python(text: str) -> None:
    assert value(text) == eval(text, dict(KNOWN))
    assert type(value(text)) is type(eval(text, dict(KNOWN)))


@pytest.mark.parametrize(
    "text",
    [
        "unknown",
        "open('x')",
        "n.real",
        "word.format(1)",
        "__import__('os')",
        "lambda: 1",
        "[x for x in row if x]",
        "'%9d' % 1",
        "f'{n:9}'",
        "f'{word!r}'",
        "'a' * 10 ** 9",
        "10 ** 9 * [0]",
        "2 ** 2 ** 40",
        "1 << 10 ** 9",
        "bytes(10 ** 9)",
        "1 / 0",
        "list(range(10 ** 9))",
        "list(range(-10 ** 9, 0))",
        "[0 for _ in range(10 ** 9)]",
        "row[7]",
        "int('x')",
        "...",
        "row.append(1)",
        "dict(**{'a': 1})",
        "[[0] * 9999] * 9999 * 9999",
        "-'a'",
        "len(range(10 ** 30))",
        "[[[0] * 9999] * 9999] * 9999",
        "[0] * 50000 * ([0] * 50000)",
        "2 ** 9000 ** ([0] * 50000)",
        "(2 ** 9000) ** ([0] * 50000)",
        "sum([[0]] * 50000, [])",
        "round(1, -10 ** 9)",
        "bytes(source=10 ** 10)",
        "('a' * 9999).replace('a', 'b' * 9999)",
        "('a' * 9999).join(['a'] * 9999)",
        "('a' * 50000).strip('b' * 49999 + 'a')",
        "''.join([chr(i) for i in range(99, 4999)]).encode('punycode')",
        "str(b'ab' * 9999, 'punycode')",
        "pytest.approx(10 ** 7, rel='a' * 9999)",
        "[[[0 for i in range(999)] for j in range(999)] for k in range(999)]",
        "list(zip(*[range(9999)] * 9999))",
        "f'{[0] * 9999}' + f'" + "{[0] * 30000}" * 999 + "'",
        "set([i * (2 ** 61 - 1) for i in range(9999)])",
        "{i * (2 ** 61 - 1) for i in range(9999)}",
        "{i * (2 ** 61 - 1): 0 for i in range(9999)}",
        "[" * 60 + "]" * 60,
    ],
)
def test_what_needs_more_or_is_large_is_not_computed(text: str) -> None:
    began = time.process_time()
    with pytest.raises(NotConstant):
        value(text)
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    "line",
    [
        "x = [[[0] * 40] * 40] * 40",
        "x = [0] * 9999; x; x; x",
        "unknown" + " + 1" * 300,
        "unknown" + ".f(1)" * 150,
        "unknown(" * 80 + "[0] * 9999" + ")" * 80,
        "x = {i * (2 ** 61 - 1) for i in range(2000)}",
    ],
)
def test_what_is_computed_grows_no_faster_than_the_file(line: str) -> None:
    source = f"{line}\n".encode() * (16_000 // len(line))
    began = time.process_time()
    size = sum(len(repr(found)) for found in computed_values(b"40 + 3\n" + source))
    assert size < 100 * len(source)
    assert time.process_time() - began < 3


def test_a_deep_expression_hides_no_other() -> None:
    lists = "".join(f"x{i + 1} = [x{i}]\n" for i in range(2000))
    deep = "a" + ".f()" * 900
    found = list(computed_values(f"x0 = [7]\n{lists}\ng({deep}, 40 + 3)\nh(9, 2 * 3)\n".encode()))
    assert {43, 6} <= {value for value in found if isinstance(value, int)}
    assert repr(found)


NUMBERS = st.integers(-50, 50).map(str) | st.sampled_from(["n", "len(word)", "row[0]"])
EXPRESSIONS = st.recursive(
    NUMBERS,
    lambda inner: st.builds(
        "({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "//", "%", "**", "<<", "|", "&", "^"]), inner
    ),
    max_leaves=8,
)


@given(EXPRESSIONS)
@settings(deadline=None)
def test_any_arithmetic_is_pythons_or_is_refused(text: str) -> None:
    try:
        found = value(text)
    except NotConstant:
        return
    assert found == eval(text, dict(KNOWN))
    assert not isinstance(found, int) or found.bit_length() <= LARGEST
