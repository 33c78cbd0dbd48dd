"""The cases of this folder that run boxes, as an ordinary user with one id: right all the same, but not sealed."""

from __future__ import annotations

import pytest
from tests.sandbox.as_nobody import for_root, run_as_nobody

SUITES = ["test_mutation.py", "test_documentation.py", "test_refactor.py"]


@pytest.mark.slow
@for_root
def test_boxes_of_an_ordinary_user() -> None:
    files = [f"tests/tasks/categories/{name}" for name in SUITES]
    words = ["-m", "pytest", "-x", "--tb=short", "-p", "no:cacheprovider", "-k", "cheats", "-m", "not slow"]
    result = run_as_nobody(words, files, timeout=280)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-2000:]
    assert " passed" in result.stdout
