"""The quick cases of this folder as an ordinary user with one id: no cheat succeeds there either."""

from __future__ import annotations

import pytest
from tests.sandbox.as_nobody import for_root, run_as_nobody

SUITES = ["test_cheats.py", "test_attempts.py", "test_verb.py"]


@pytest.mark.slow
@for_root
def test_cheats_in_boxes_of_an_ordinary_user() -> None:
    files = [f"tests/tasks/cheats/{name}" for name in SUITES]
    words = ["-m", "pytest", "-x", "--tb=short", "-p", "no:cacheprovider", "-m", "not slow"]
    result = run_as_nobody(words, files, timeout=280)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-2000:]
    assert " passed" in result.stdout
