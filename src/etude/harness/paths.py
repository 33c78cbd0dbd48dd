"""Comparison of paths that are relative to the workspace; "." is the workspace itself."""

from __future__ import annotations


def within(path: str, folder: str) -> bool:
    """Return whether the path is the folder itself or below it."""
    return folder in (".", path) or path.startswith(f"{folder}/")
