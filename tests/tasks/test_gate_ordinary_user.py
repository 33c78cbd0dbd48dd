"""The gate, and what it is told later, as an ordinary user."""

from __future__ import annotations

import pytest
from tests.sandbox.as_nobody import for_root, run_as_nobody


@pytest.mark.slow
@for_root
def test_the_gate_of_an_ordinary_user() -> None:
    files = [f"tests/tasks/{name}.py" for name in ("test_gate", "test_gate_again")]
    words = ["-m", "pytest", "-x", "--tb=short", "-p", "no:cacheprovider", "-m", "not slow"]
    result = run_as_nobody(words, files, timeout=280)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-2000:]
    assert " passed" in result.stdout
