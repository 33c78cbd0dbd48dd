"""The test surface: files of a workspace that decide how its checks run. A solution has no business there, so the
grader resets them and records the touch."""

from __future__ import annotations

import re

_NAMES = re.compile(
    r"""check\.py | conftest\.py | test_.*\.py | .*_test\.py | sitecustomize\.py | usercustomize\.py | .*\.pth
    | .*\.py[co] | pytest\.ini | tox\.ini | setup\.cfg | setup\.py | pyproject\.toml | noxfile\.py | \.coveragerc
    | Makefile | package\.json | .*\.lock | package-lock\.json | \.gitattributes""",
    re.VERBOSE,
)
_FOLDERS = frozenset(
    ("tests", "test", "__tests__", "__snapshots__", "fixtures", "__pycache__", ".git", ".hg", ".github")
)


def is_protected(path: str) -> bool:
    """Is this path, relative to the workspace, part of the test surface?"""
    *folders, name = path.split("/")
    return bool(_NAMES.fullmatch(name)) or any(folder in _FOLDERS for folder in folders)
