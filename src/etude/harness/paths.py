"""Tests on workspace paths; "." is the workspace itself."""

from __future__ import annotations


def within(path: str, folder: str) -> bool:
    """Return whether the path is the folder, or below it."""
    return folder in (".", path) or path.startswith(f"{folder}/")
