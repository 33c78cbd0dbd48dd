"""What is computed is what Python computes, and nothing is computed that needs more than what is written down."""

from __future__ import annotations

import ast
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.tasks.verifiers.tests.constants import LARGEST, NotConstant, evaluate

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
    ],
)
def test_what_needs_more_or_is_large_is_not_computed(text: str) -> None:
    began = time.process_time()
    with pytest.raises(NotConstant):
        value(text)
    assert time.process_time() - began < 0.2


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
