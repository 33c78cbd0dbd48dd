"""Whole test files as an ordinary user with one id: what boxes promise to root's tests must hold for theirs.

They take as long as all their tests together, and each of these has a deadline of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.sandbox.as_nobody import for_root, run_as_nobody

_SECONDS = 1500.0
QUICK = ("-m", "not slow")


def as_ordinary_user(test: Callable[..., None]) -> Callable[..., None]:
    marked: Callable[..., None] = pytest.mark.slow(for_root(test))
    return marked


def passes(*files: str, options: tuple[str, ...] = QUICK) -> None:
    """Files by their paths below tests/tasks."""
    words = ["-m", "pytest", "-x", "--tb=short", "-p", "no:cacheprovider", *options]
    result = run_as_nobody(words, [f"tests/tasks/{name}" for name in files], timeout=_SECONDS)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-2000:]
    assert " passed" in result.stdout
