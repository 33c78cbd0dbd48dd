"""The gate, and what it is told later, as an ordinary user."""

from __future__ import annotations

from tests.tasks.ordinary_user import as_ordinary_user, passes


@as_ordinary_user
def test_the_gate_of_an_ordinary_user() -> None:
    passes("test_gate.py", "test_gate_again.py")
