"""The test surface: workspace files that decide how the workspace's checks run, such as tests and their configuration.
A solution has no reason to change these files, so the grader restores them and records that a diff touched them."""

from __future__ import annotations

import re

_NAMES = re.compile(
    r"""check\.py | conftest\.py | test_.*\.py | .*_test\.(py|go) | .*\.(test|spec)\.[cm]?[jt]sx?
    | sitecustomize\.py | usercustomize\.py | .*\.pth | .*\.py[co]
    | \.?pytest\.(ini|toml) | tox\.ini | setup\.cfg | setup\.py | pyproject\.toml | noxfile\.py | \.coveragerc
    | (jest|vitest|karma)\.conf(ig)?\..* | \.mocharc.* | \.npmrc | package\.json
    | (GNUm|M|m)akefile | .*\.lock | package-lock\.json | npm-shrinkwrap\.json | pnpm-lock\.yaml | bun\.lockb
    | \.gitattributes""",
    re.VERBOSE,
)
_FOLDERS = frozenset(
    ("tests", "test", "__tests__", "__mocks__", "__snapshots__", "fixtures", "__pycache__", ".git", ".hg", ".github")
)


def is_protected(path: str) -> bool:
    """Return whether a path, relative to the workspace, belongs to the test surface (tests and their configuration)."""
    *folders, name = path.split("/")
    return bool(_NAMES.fullmatch(name)) or any(folder in _FOLDERS for folder in folders)
