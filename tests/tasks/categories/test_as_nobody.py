"""The cases of this folder that run boxes, as an ordinary user with one id: right all the same, but not sealed."""

from __future__ import annotations

import pytest
from tests.sandbox.as_nobody import for_root, run_as_nobody

CHEATS = ["test_mutation.py", "test_documentation.py", "test_refactor.py", "test_migration.py"]


@pytest.mark.slow
@for_root
def test_cheats_of_an_ordinary_user() -> None:
    _run(CHEATS, "-k", "cheats", "-m", "not slow")


@pytest.mark.slow
@for_root
def test_one_task_of_each_category() -> None:
    _run(["test_one_of_each.py"])


def _run(suites: list[str], *options: str) -> None:
    files = [f"tests/tasks/categories/{name}" for name in suites]
    words = ["-m", "pytest", "-x", "--tb=short", "-p", "no:cacheprovider", *options]
    result = run_as_nobody(words, files, timeout=280)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-2000:]
    assert " passed" in result.stdout
