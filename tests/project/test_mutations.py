"""What `make mutants` offers as faults, and that a fault is that one alone."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture(scope="module")
def mutations() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutations", SCRIPTS / "mutations.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["mutations"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SOURCE = '''"""Of 3."""
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    LIMIT = 9


def größer(ä: int = 1, *, b: "2" = True) -> "3":
    if not ä and b <= ä:
        raise ValueError(f"{ä + 1} is not {b}")
    log("é", ä + b)
    ä += 2
    return ä
'''
EXPECTED = [
    ("1", "2"),
    ("True", "False"),
    ("not ", ""),
    ("not ä and b <= ä", "(not (not ä and b <= ä))"),
    ("and", "or"),
    ("<=", "<"),
    ('raise ValueError(f"{ä + 1} is not {b}")', "pass"),
    ('log("é", ä + b)', "pass"),
    ("+", "-"),
    ("+=", "-="),
    ("2", "3"),
    ("return ä", "return None"),
]


def test_each_fault_is_offered_once_where_something_could_tell(mutations: ModuleType) -> None:
    source = SOURCE.encode()
    found = mutations.mutations_of("a.py", source)
    assert [(mutation.before, mutation.after) for mutation in found] == EXPECTED
    whole = ast.dump(ast.parse(source))
    for mutation in found:
        changed = mutation.apply(source)
        assert ast.dump(ast.parse(changed)) != whole
        assert SOURCE.splitlines()[mutation.line - 1].count(mutation.before) >= 1
        same = len(source) - (mutation.end - mutation.start)
        assert len(changed) - len(mutation.after.encode()) == same


def test_a_place_that_reads_otherwise_is_refused(mutations: ModuleType) -> None:
    mutation = mutations.mutations_of("a.py", b"x = 1\n")[0]
    with pytest.raises(ValueError, match="no longer reads"):
        mutation.apply(b"y = 22\n")


PROBED = """
LIMIT = 1


def protocol(
    self,
): ...


def f(x):
    "Of 1."
    if x == 1:
        return [
            2,
        ]
    elif x == 2:
        return 3
"""


@pytest.mark.parametrize(("given", "reached"), [(1, ["LIMIT", "if", "elif", "[2]"]), (2, ["LIMIT", "if", "elif", "3"])])
def test_a_probe_tells_that_the_statement_of_its_line_runs(
    mutations: ModuleType, monkeypatch: pytest.MonkeyPatch, given: int, reached: list[str]
) -> None:
    places = ["LIMIT", "if", "[2]", "elif", "3"]
    told: list[int] = []
    monkeypatch.setitem(sys.modules, "reached", SimpleNamespace(line=told.append))
    names: dict[str, Any] = {}
    exec(mutations.with_probes(PROBED, dict(enumerate([2, 12, 14, 16, 17]))), names)
    assert not told, "nothing has run but the import"
    names["f"](given)
    assert [places[number] for number in told] == reached
