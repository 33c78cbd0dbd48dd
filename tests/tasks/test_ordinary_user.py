"""The cases here that run boxes, as an ordinary user with one id: right all the same, but not sealed."""

from __future__ import annotations

import pytest

from .ordinary_user import QUICK, as_ordinary_user, passes

SEALING = ("test_seal.py", "test_environment.py")
PROVING = tuple(f"verifiers/test_{name}.py" for name in ("running", "proving", "proof"))
CATEGORIES = tuple(f"categories/test_{name}.py" for name in ("mutation", "documentation", "refactor", "migration"))
SWEBENCH = ("formats/swebench/test_grading.py", "verifiers/swebench/test_script.py")
CASES = {
    "base": (("test_base.py",), QUICK),
    "gate": (("test_gate.py", "test_gate_again.py"), QUICK),
    "sealing": (SEALING, ()),
    "proving": (PROVING, QUICK),
    "cheats": (CATEGORIES, ("-k", "cheats", *QUICK)),
    "harbor": (("formats/test_harbor_run.py",), QUICK),
    "swebench": (SWEBENCH, QUICK),
    "one of each": (("categories/test_one_of_each.py",), ("-m", "not soak")),
}
SOAK = ("one of each",)


@pytest.mark.parametrize("case", [pytest.param(name, marks=[pytest.mark.soak] * (name in SOAK)) for name in CASES])
@as_ordinary_user
def test_as_an_ordinary_user(case: str) -> None:
    files, options = CASES[case]
    passes(*files, options=options)
