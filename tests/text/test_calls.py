from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.text import Arguments, CallSchema, Parameter, format_call, parse_call

EDIT = CallSchema("edit", (Parameter("file"), Parameter("line", "int"), Parameter("text", "rest")))
LINES = CallSchema("rewrite", (Parameter("file"), Parameter("lines", "numbered")))
READ = CallSchema("read", (Parameter("file"), Parameter("start", "int", False), Parameter("end", "int", False)))
GREP = CallSchema("grep", (Parameter("pattern", "line"), Parameter("path", "word", False)))
SHELL = CallSchema("shell", (Parameter("command", "rest"),))
FINISH = CallSchema("finish")
SCHEMAS = {schema.name: schema for schema in (EDIT, LINES, READ, GREP, SHELL, FINISH)}


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("edit calc.py 3 return a + b", ("edit", {"file": "calc.py", "line": 3, "text": "return a + b"})),
        ("edit calc.py 3     return a", ("edit", {"file": "calc.py", "line": 3, "text": "    return a"})),
        ("edit calc.py 3 a\n    b\n", ("edit", {"file": "calc.py", "line": 3, "text": "a\n    b\n"})),
        ("edit calc.py 3 ", ("edit", {"file": "calc.py", "line": 3, "text": ""})),
        ("rewrite calc.py 3 a\n5     b\n", ("rewrite", {"file": "calc.py", "lines": "3 a\n5     b\n"})),
        ("rewrite calc.py 3\n4 ", ("rewrite", {"file": "calc.py", "lines": "3\n4 "})),
        ("rewrite calc.py 3 a\nb", "rewrite: a line must begin with its number, not b"),
        ("rewrite calc.py 3 a\n\n", "rewrite: a line must begin with its number, not be empty"),
        ("rewrite calc.py", "rewrite needs: file lines"),
        (" read calc.py ", ("read", {"file": "calc.py"})),
        ("read calc.py 2 9", ("read", {"file": "calc.py", "start": 2, "end": 9})),
        ("grep a b\nsrc", ("grep", {"pattern": "a b", "path": "src"})),
        ("finish", ("finish", {})),
        ("", "empty call, tools: edit, rewrite, read, grep, shell, finish"),
        ("edti x", "unknown tool edti, tools: edit, rewrite, read, grep, shell, finish"),
        ("edit calc.py", "edit needs: file line text"),
        ("edit calc.py three x", "edit: line must be a number, not three"),
        ("edit calc.py 99999999999999999999999999 x", "edit: line must be a number, not 999999999999999999999999..."),
        ("read", "read needs: file [start] [end]"),
        ("read a 1 2 3", "read takes only: file [start] [end]"),
        ("finish now", "finish takes nothing"),
    ],
)
def test_parsing(raw: str, expected: tuple[str, Arguments] | str) -> None:
    assert parse_call(raw, SCHEMAS) == expected


@settings(deadline=None)
@given(raw=st.text(max_size=40))
def test_any_text_parses_or_gives_one_short_line(raw: str) -> None:
    result = parse_call(raw, SCHEMAS)
    if isinstance(result, str):
        assert "\n" not in result
        assert len(result) < 120


words = st.text(
    st.characters(exclude_characters=" \n\t\r", exclude_categories=("Cs", "Z", "C")), min_size=1, max_size=12
)
integers = st.integers(-999_999_999, 999_999_999)
texts = st.text(max_size=30)
lines = st.text(max_size=20).filter(lambda line: "\n" not in line and bool(line.strip()))


numbered = st.lists(st.tuples(integers.map(abs), st.text(max_size=9)), min_size=1, max_size=4).map(
    lambda lines: "\n".join(f"{number} {text}".replace("\n", "") for number, text in lines)
)


@settings(deadline=None)
@given(
    case=st.one_of(
        st.tuples(
            st.just(EDIT), st.fixed_dictionaries({"file": words, "line": integers, "text": st.text(max_size=30)})
        ),
        st.tuples(st.just(LINES), st.fixed_dictionaries({"file": words, "lines": numbered})),
        st.tuples(st.just(READ), st.fixed_dictionaries({"file": words}, optional={"start": integers})),
        st.tuples(st.just(GREP), st.fixed_dictionaries({"pattern": lines}, optional={"path": words})),
        st.tuples(st.just(SHELL), st.fixed_dictionaries({"command": texts})),
    )
)
def test_what_is_formatted_parses_back(case: tuple[CallSchema, Arguments]) -> None:
    schema, arguments = case
    assert parse_call(format_call(schema.name, arguments, schema), SCHEMAS) == (schema.name, arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"file": "two words", "line": 3, "text": ""},
        {"file": "", "line": 3, "text": ""},
        {"file": "a", "line": "x", "text": ""},
        {"file": "a", "text": "no line"},
        {"file": "a", "line": 1, "text": "", "more": 1},
    ],
)
def test_what_the_grammar_cannot_express_is_refused(arguments: Arguments) -> None:
    with pytest.raises(ValueError, match="edit"):
        format_call("edit", arguments, EDIT)


def test_an_optional_argument_needs_those_before_it() -> None:
    with pytest.raises(ValueError, match="end cannot be given without start"):
        format_call("read", {"file": "a", "end": 3}, READ)


def test_schemas_that_cannot_be_parsed_back_are_refused() -> None:
    with pytest.raises(ValueError, match="must come last"):
        CallSchema("x", (Parameter("a", "rest"), Parameter("b")))
    with pytest.raises(ValueError, match="follows an optional"):
        CallSchema("x", (Parameter("a", "word", False), Parameter("b")))
    with pytest.raises(ValueError, match="one word"):
        CallSchema("two words")
