"""Every dialect read from what a real linter printed (`golden/`), and from anything at all."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.harness.lints import Linter, builtin_linters, parse_linter
from etude.harness.lints.parsers import PARSERS, Finding, LinterOutput, Unreadable
from etude.harness.schema import SchemaError

GOLDEN = Path(__file__).parent / "golden"
AT = "/tmp/etude-scratch"
LINTERS = {linter.name: linter for linter in builtin_linters()}


def said(linter: Linter, stdout: str, stderr: str = "") -> list[Finding]:
    return PARSERS[linter.parser](LinterOutput(stdout, stderr, linter.pattern, linter.severity))


def golden(linter: str, file: str, stderr: str = "") -> list[Finding]:
    read = [(GOLDEN / name).read_text(encoding="utf-8") if name else "" for name in (file, stderr)]
    return said(LINTERS[linter], *read)


def test_ruff_0_17_5() -> None:
    assert golden("ruff", "ruff.txt") == [
        Finding(f"{AT}/py/a.py", 1, 8, "warning", "F401", "`os` imported but unused"),
        Finding(
            f"{AT}/py/a.py",
            9,
            5,
            "warning",
            "F811",
            "Redefinition of unused `twice` from line 8: `twice` redefined here",
        ),
        Finding(
            f"{AT}/py/b.py", 1, 12, "error", "invalid-syntax", "Expected a parameter or the end of the parameter list"
        ),
        Finding(f"{AT}/py/b.py", 1, 13, "error", "invalid-syntax", "Expected `)`, found newline"),
    ]


def test_mypy_2_4_1() -> None:
    assert golden("mypy", "mypy.txt") == [
        Finding("a.py", 5, 12, "error", "return-value", 'Incompatible return value type (got "str", expected "int")'),
        Finding("a.py", 9, 1, "error", "no-redef", 'Name "twice" already defined on line 8'),
    ]
    assert [(found.path, found.line, found.code) for found in golden("mypy", "mypy-stopped.txt")] == [
        ("b.py", 1, "syntax"),
        ("b.py", 1, "syntax"),
    ]


def test_mypy_notes_explain_and_are_no_problems() -> None:
    text = 'a.py:3: note: Revealed type is "int"\na.py:4: error: No code: here\nSuccess: no issues found\n'
    assert said(LINTERS["mypy"], text) == [Finding("a.py", 4, 0, "error", "", "No code: here")]


def test_pyright_1_1_414() -> None:
    message = 'Type "str" is not assignable to return type "int" "str" is not assignable to "int"'
    assert golden("pyright", "pyright.json") == [
        Finding(f"{AT}/py/a.py", 5, 12, "error", "reportReturnType", message),
        Finding(
            f"{AT}/py/a.py",
            8,
            5,
            "error",
            "reportRedeclaration",
            'Function declaration "twice" is obscured by a declaration of the same name',
        ),
    ]


def test_flake8_7_5_0() -> None:
    assert golden("flake8", "flake8.txt") == [
        Finding("a.py", 1, 1, "warning", "F401", "'os' imported but unused"),
        Finding("a.py", 9, 1, "warning", "F811", "redefinition of unused 'twice' from line 8"),
    ]


def test_tsc_5_9_3() -> None:
    found = golden("tsc", "tsc.txt")
    assert [(entry.path, entry.line, entry.column, entry.code) for entry in found] == [
        ("a.ts", 1, 7, "TS2322"),
        ("a.ts", 3, 10, "TS2322"),
        ("a.ts", 4, 19, "TS7006"),
        ("a.ts", 5, 7, "TS2322"),
    ]
    assert said(LINTERS["tsc"], "error TS18003: No inputs were found.\r\n") == [
        Finding("", 0, 0, "error", "TS18003", "No inputs were found.")
    ]


def test_eslint_10_15_0() -> None:
    assert golden("eslint", "eslint.json") == [
        Finding(f"{AT}/js/a.js", 2, 7, "warning", "eqeqeq", "Expected '===' and instead saw '=='."),
        Finding(f"{AT}/js/a.js", 3, 7, "error", "no-unused-vars", "'unused' is assigned a value but never used."),
        Finding(f"{AT}/js/b.js", 1, 9, "error", "", "Parsing error: Unexpected token ;"),
    ]


def test_go_vet_1_27() -> None:
    printed = golden("go vet", "go_vet.json", "go_vet.stderr.txt")
    assert printed == [
        Finding(f"{AT}/go/main.go", 8, 2, "warning", "assign", "self-assignment of n"),
        Finding(
            f"{AT}/go/main.go", 6, 14, "warning", "printf", 'fmt.Printf format %d has arg "text" of wrong type string'
        ),
        Finding(
            "sub/sub.go",
            4,
            9,
            "error",
            "",
            'cannot use "text" (untyped string constant) as int value in return statement',
        ),
    ]
    older = (GOLDEN / "go_vet.json").read_text(encoding="utf-8")
    assert said(LINTERS["go vet"], "", f"# example.test/m\n{older}# other\n{{}}\n") == printed[:2]


def test_cargo_1_95() -> None:
    assert golden("cargo check", "cargo.jsonl")[0] == Finding(
        "src/main.rs", 3, 18, "error", "E0308", "mismatched types"
    )


@pytest.mark.parametrize("linter", LINTERS.values(), ids=LINTERS)
@given(
    text=st.one_of(st.text(), st.sampled_from(["[" * 100_000, "{", "{}", '{"reason": 1}', "null", "a:1" * 99, "\0"]))
)
def test_anything_is_read_or_refused(linter: Linter, text: str) -> None:
    with suppress(Unreadable):
        for entry in said(linter, text, text):
            assert "\n" not in entry.message
            assert len(entry.message) <= 303


def test_numbers_without_an_end_are_no_lines() -> None:
    assert said(LINTERS["mypy"], f"a.py:{'9' * 5000}: error: far\n")[0].line == 0
    with pytest.raises(Unreadable):
        said(LINTERS["eslint"], '[{"filePath": "a", "messages": [{"severity": 2, "message": "m", "line": -1}]}]')


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"parser": "none"}, "parser is 'none', expected one of"),
        ({"scope": "all"}, "scope is 'all'"),
        ({"pattern": "("}, "missing )"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_data_file_that_cannot_be_used_says_why(change: dict[str, str], complaint: str) -> None:
    fields = {"name": "x", "command": "{program}", "parser": "lines", "scope": "files", "roots": "every"} | change
    text = "".join(f"{key} = '{value}'\n" for key, value in fields.items())
    text += "programs = ['x']\nfound = [1]\nsuffixes = ['.x']\n[[configs]]\nname = 'x.toml'\n"
    with pytest.raises(SchemaError, match=r"linter x\.toml: ") as error:
        parse_linter(text, "x.toml")
    assert complaint in str(error.value)
