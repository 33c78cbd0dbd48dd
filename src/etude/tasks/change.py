"""A change to a workspace, as the grader applies it: paths with their new bytes, or None for a deleted file.

The change is built from an agent's diff, which is hostile input. A diff that does not apply exactly is refused, and
tests and their configuration keep their contents.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from etude.tasks.diff import EXECUTABLE, Bounds, DiffError, apply_diff, parse_diff


@dataclass(frozen=True, slots=True)
class Change:
    files: Mapping[str, bytes | None] = field(default_factory=dict)
    """New contents of the changed files, by path; None for a deleted file."""
    touched: tuple[str, ...] = ()
    """Protected paths (tests and their configuration) that the diff names. The grader restores them, so they are not in
    `files`."""
    executable: frozenset[str] = frozenset()
    """Changed files that are executable afterwards. A file that was executable before stays so."""

    @property
    def digest(self) -> str:
        digest = hashlib.sha256(repr((self.touched, sorted(self.executable))).encode())
        for path, data in sorted(self.files.items()):
            size = -1 if data is None else len(data)
            digest.update(f"{path} {size}\n".encode("utf-8", "surrogatepass") + (data or b""))
        return digest.hexdigest()


def change_of(
    diff: str,
    pristine: Mapping[str, bytes],
    protects: Callable[[str], bool],
    bounds: Bounds | None = None,
    *,
    executable: Collection[str] = (),
    links: Collection[str] = (),
    folders: Collection[str] = (),
) -> Change:
    """Return the change that a diff makes to the pristine files. Raises DiffError if it does not apply exactly or
    exceeds the bounds.

    `protects` returns whether a path keeps its contents, whatever the diff says. `executable` are the pristine files
    with the executable bit. No new file may replace one of the workspace's symbolic `links` or empty `folders`.
    """
    bounds = bounds or Bounds()
    patches = parse_diff(diff, bounds)
    named = {path for patch in patches for path in (patch.before, patch.after) if path is not None}
    # A diff can only touch text files.
    texts = {path: text for path, data in pristine.items() if (text := _text(data)) is not None}
    after = apply_diff(texts, diff, bounds)
    _require_free_paths(after.keys() - texts.keys(), pristine.keys() - texts.keys(), links, folders)
    modes = {patch.after: patch.mode == EXECUTABLE for patch in patches if patch.after is not None and patch.mode}
    files: dict[str, bytes | None] = {}
    for path in sorted(named):
        data = _bytes(after[path]) if path in after else None
        if not protects(path) and (pristine.get(path) != data or (modes.get(path) and path not in executable)):
            files[path] = data
    if sum(len(data) for data in files.values() if data is not None) > bounds.all_bytes:
        raise DiffError(f"the files that the diff changes would hold more than {bounds.all_bytes} bytes")
    runs = frozenset(path for path in files if path in after and (modes.get(path) or path in executable))
    return Change(files, tuple(sorted(filter(protects, named))), runs)


def _require_free_paths(
    fresh: Iterable[str], binary: Collection[str], links: Collection[str], folders: Collection[str]
) -> None:
    """Raise DiffError if a new file would replace a folder, or would replace or lie below a link or a binary file."""
    for path in fresh:
        above = [path[:at] for at, letter in enumerate(path) if letter == "/"]
        if found := next((place for place in (*above, path) if place in links), None):
            raise DiffError(f"{path}: {found} is a link")
        if found := next((place for place in (*above, path) if place in binary), None):
            raise DiffError(f"{path}: {found} exists already and is not a text file")
        if path in folders or any(place.startswith(f"{path}/") for place in binary):
            raise DiffError(f"{path} is a folder")


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
