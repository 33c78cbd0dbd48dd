"""Conditions of tests that need a program of the machine; `make tools` installs what apt and root allow.

CI has all of them. What is skipped is said once, at the end of a session (tests/conftest.py).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, TypeVar

import pytest

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


second_user = pytest.mark.skipif(
    os.geteuid() != 0 and shutil.which("newuidmap", path=_PATH) is None,
    reason="an ordinary user's boxes have a second user with newuidmap: make tools",
)


ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not Path("/dev/nvidia0").exists(), reason="needs a CUDA device")]
"""Marks of tests that need a GPU."""
T = TypeVar("T")


def on_gpu(test: T) -> T:
    for mark in ON_GPU:
        test = mark(test)
    return test


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skips a test where one of these is missing on the usual path, which boxes have too."""
    missing = [program for program in programs if shutil.which(program, path=_PATH) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}: make tools")


class ImportedWhenUsed:
    """A library that is imported once a test asks for a name of it; the test is skipped where it is not installed.

    Every worker collects all tests: what stands above the tests of a file is imported by all workers, and one library
    of peers takes as long as some hundred tests."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest asks everything in a test file for its marks
            raise AttributeError(attribute)
        return getattr(pytest.importorskip(self._name), attribute)


transformers = ImportedWhenUsed("transformers")
peft = ImportedWhenUsed("peft")
