"""Python files of a workspace, whose constant expressions are evaluated to find what they tell."""

from __future__ import annotations

from hypothesis import strategies as st
from tests.fuzz.target import Target

from etude.tasks.verifiers.tests.visible_answers import computed_values

_MOST_PER_BYTE = 1_000


def _run(data: bytes) -> str:
    found = list(computed_values(data))
    assert sum(len(repr(value)) for value in found) <= _MOST_PER_BYTE * (len(data) + 100), "more than a file can tell"
    return " ".join(sorted({type(value).__name__ for value in found}))


_ATOMS, _OPERATORS, _FUNCTIONS, _METHODS = (
    st.sampled_from(words.split())
    for words in (
        "0 -1 2.5 9999 10**9 2305843009213693951 'a' b'a' 'punycode' None () {} [0] range(9999) x y i unknown",
        "+ - * / // % ** << | & ^",
        """bytes dict enumerate frozenset int len list max range repr reversed round set sorted str sum tuple zip
        pytest.approx unknown""",
        "count decode encode get index items join replace split strip title unknown",
    )
)


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("({} {} {})".format, inner, _OPERATORS, inner),
        st.builds("{}({})".format, _FUNCTIONS, inner),
        st.builds("{}({}, {})".format, _FUNCTIONS, inner, inner),
        st.builds("{}(*{})".format, _FUNCTIONS, inner),
        st.builds("{}.{}({})".format, inner, _METHODS, inner),
        st.builds("{}.{}({}, {})".format, inner, _METHODS, inner, inner),
        st.builds("[{}, *{}, {}]".format, inner, inner, inner),
        st.builds("{{{}: {}, **{}}}".format, inner, inner, inner),
        st.builds("[{} for i in {}]".format, inner, inner),
        st.builds("{{{} for i in {}}}".format, inner, inner),
        st.builds("{{{}: {} for i in {}}}".format, inner, inner, inner),
        st.builds("{}[{}:{}]".format, inner, inner, inner),
        st.builds("f'{{{}}}{{{}}}'".format, inner, inner),
    )


_EXPRESSIONS = st.recursive(_ATOMS, _larger, max_leaves=12)
_LINES = st.builds("{} = {}\n".format, st.sampled_from("xyz"), _EXPRESSIONS) | _EXPRESSIONS.map("{}\n".format)
_SOURCES = st.lists(_LINES, max_size=8).map(lambda lines: "".join(lines).encode())
_WATCHED = tuple(f"etude.tasks.verifiers.tests.{name}" for name in ("constants", "visible_answers", "bindings"))


def _examples() -> list[bytes]:
    return [
        b"x = [0] * 99\ny = [x] * 99\nz = {i: [y, i * 2 ** 61] for i in range(99)}\n",
        b"unknown" + b" + 1" * 99 + b"\n" + b"unknown" + b".f(1)" * 99 + b"\n",
        b"x = sum([[0]] * 999, [])\nf'{x}{x}'\nround(1, -999)\n'a'.join(['b'] * 99).replace('b', 'c' * 99)\n",
    ]


TARGETS = (Target("source", _run, _SOURCES, _WATCHED, _examples, largest=1 << 14),)
