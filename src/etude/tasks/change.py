"""A change to a workspace, as the grader takes it: paths with their new bytes, or None for a file that goes.

Made of an agent's diff, which is hostile: what cannot be applied exactly is refused, and files of the test surface stay
as they were.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from etude.tasks.diff import Bounds, apply_diff, parse_diff


@dataclass(frozen=True, slots=True)
class Change:
    files: Mapping[str, bytes | None] = field(default_factory=dict)
    touched: tuple[str, ...] = ()
    """Paths of the test surface that the agent touched: not among `files`."""

    @property
    def digest(self) -> str:
        digest = hashlib.sha256(repr(self.touched).encode())
        for path, data in sorted(self.files.items()):
            size = -1 if data is None else len(data)
            digest.update(f"{path} {size}\n".encode("utf-8", "surrogatepass") + (data or b""))
        return digest.hexdigest()


def change_of(
    diff: str, pristine: Mapping[str, bytes], protects: Callable[[str], bool], bounds: Bounds | None = None
) -> Change:
    """DiffError if it is not exactly a diff of these files within the bounds."""
    bounds = bounds or Bounds()
    named = {path for patch in parse_diff(diff, bounds) for path in (patch.before, patch.after) if path is not None}
    # Files that are not text cannot be touched by a diff.
    texts = {path: text for path, data in pristine.items() if (text := _text(data)) is not None}
    after = apply_diff(texts, diff, bounds)
    files = {path: None if path not in after else _bytes(after[path]) for path in named if not protects(path)}
    kept = {path: data for path, data in files.items() if pristine.get(path) != data}
    return Change(kept, tuple(sorted(filter(protects, named))))


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
