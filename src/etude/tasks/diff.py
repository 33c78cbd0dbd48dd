"""Parses unified diffs and applies them to a tree of texts, strictly and outside of any box.

An agent's diff is hostile input. Its size and number of files are bounded, and every path must stay inside the
workspace. Links, binary patches and file modes other than plain or executable are refused. Each hunk must match the
pristine text exactly: there is no fuzz.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

NOWHERE = "/dev/null"
PLAIN, EXECUTABLE = "100644", "100755"
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@.*")
_LONGEST_NAME = 255
_MODE = re.compile(r"(new file mode|deleted file mode|old mode|new mode) (100644|100755)")
_INDEX = re.compile(r"index [0-9a-f]+\.\.[0-9a-f]+( 100644| 100755)?")
_NO_NEWLINE = "\\ No newline at end of file"


class DiffError(Exception):
    """The diff cannot be applied: it is malformed, breaks a bound, or does not match the files."""


@dataclass(frozen=True, slots=True)
class Bounds:
    diff_bytes: int = 256_000
    files: int = 64
    file_bytes: int = 1_000_000
    """Maximum size of one file after the diff is applied."""
    all_bytes: int = 8_000_000
    """Maximum size of all changed files together: a small diff to many large files must not fill the disk."""
    path_length: int = 200


@dataclass(slots=True)
class Hunk:
    """One hunk of a diff: the lines `old` are replaced by the lines `new`."""

    start: int
    """Index of the first old line in the original file, from 0."""
    old: list[str] = field(default_factory=list)
    """The replaced lines, each with its newline at the end."""
    new: list[str] = field(default_factory=list)


@dataclass(slots=True)
class FilePatch:
    before: str | None
    """Path of the file before the change; None if the diff creates the file."""
    after: str | None
    """Path of the file after the change; None if the diff deletes the file."""
    hunks: list[Hunk] = field(default_factory=list)
    mode: str = ""
    """PLAIN or EXECUTABLE if the diff sets the file's mode, else empty."""


def split_lines(text: str) -> list[str]:
    """Return the lines with their newlines. Only "\\n" ends a line, as in a file."""
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def apply_diff(files: Mapping[str, str], diff: str, bounds: Bounds | None = None) -> dict[str, str]:
    """Return the files after the diff. Raises DiffError if it does not apply exactly or exceeds the bounds."""
    bounds = bounds or Bounds()
    result = dict(files)
    patches = parse_diff(diff, bounds)
    for patch in patches:
        if patch.before is not None and patch.before not in files:
            raise DiffError(f"{patch.before} is not in the workspace")
        if patch.before is None and patch.after in files:
            raise DiffError(f"{patch.after} exists already, but the diff creates it")
        text = _apply(files[patch.before] if patch.before is not None else "", patch)
        if patch.after is None:
            if text:
                raise DiffError(f"{patch.before}: deleted, but lines remain")
            del result[patch.before or ""]
        elif len(text.encode("utf-8", "surrogatepass")) > bounds.file_bytes:
            raise DiffError(f"{patch.after} would be larger than {bounds.file_bytes} bytes")
        else:
            result[patch.after] = text
    folders = {"/".join(path.split("/")[:depth]) for path in result for depth in range(1, path.count("/") + 1)}
    if clash := folders & result.keys():
        raise DiffError(f"{min(clash)} is a file and a folder")
    return result


def parse_diff(diff: str, bounds: Bounds | None = None) -> list[FilePatch]:
    """Parse a diff into one patch per file. Raises DiffError if it is malformed or exceeds the bounds."""
    bounds = bounds or Bounds()
    if len(diff.encode("utf-8", "surrogatepass")) > bounds.diff_bytes:
        raise DiffError(f"the diff is larger than {bounds.diff_bytes} bytes")
    if diff and not diff.endswith("\n"):
        raise DiffError("the diff does not end with a newline")
    patches: list[FilePatch] = []
    lines = _Lines(diff.split("\n")[:-1])
    while (line := lines.peek()) is not None:
        if line.startswith("--- "):
            patches.append(_file(lines, bounds))
        elif line.startswith("diff --git "):
            patch = _with_git_header(lines, bounds)
            patches += [patch] if patch else []
        else:
            # Renames, binary patches and stray text all end up here.
            raise DiffError(f"line {lines.at + 1}: expected a file header, found {line[:60]!r}")
        if len(patches) > bounds.files:
            raise DiffError(f"the diff touches more than {bounds.files} files")
    touched = [path for patch in patches for path in {patch.before, patch.after} if path is not None]
    if len(set(touched)) != len(touched):
        raise DiffError("the diff names a file twice")
    return patches


class _Lines:
    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.at = 0

    def peek(self, ahead: int = 0) -> str | None:
        return self.lines[self.at + ahead] if self.at + ahead < len(self.lines) else None

    def next(self) -> str:
        line = self.peek()
        if line is None:
            raise DiffError("the diff ends too early")
        self.at += 1
        return line


def _with_git_header(lines: _Lines, bounds: Bounds) -> FilePatch | None:
    """Parse the patch of one file that begins with a `diff --git` header. Only such a header can set a file's mode, or
    create or delete an empty file. Return None if nothing changes."""
    name = _named_twice(lines.next().removeprefix("diff --git "))
    modes: dict[str, str] = {}
    while (line := lines.peek()) is not None and not line.startswith(("--- ", "diff --git ")):
        if match := _MODE.fullmatch(line):
            modes[match[1]] = match[2]
        elif not _INDEX.fullmatch(line):
            raise DiffError(f"line {lines.at + 1}: only plain text files may change, found {line[:60]!r}")
        lines.next()
    if not name:
        raise DiffError(f"line {lines.at}: expected a git header that names one file")
    path = _path(f"a/{name}", "a/", bounds)
    mode = modes.get("new file mode") or modes.get("new mode", "")
    if {f"--- a/{path}", f"+++ b/{path}"} & {line, lines.peek(1)}:
        patch = _file(lines, bounds)
        if (patch.before is None) != ("new file mode" in modes) or (patch.after is None) != (
            "deleted file mode" in modes
        ):
            raise DiffError(
                f"line {lines.at}: git's header and {path} disagree on whether the file is created or deleted"
            )
        patch.mode = mode
        return patch
    if "deleted file mode" in modes:
        return FilePatch(path, None)
    if "new file mode" in modes:
        return FilePatch(None, path, mode=mode)
    return FilePatch(path, path, mode=mode) if mode else None


def _named_twice(names: str) -> str:
    """Return NAME of "a/NAME b/NAME", or an empty string if the text is not of this form."""
    name = names[2 : (len(names) - 1) // 2]
    return name if names == f"a/{name} b/{name}" else ""


def _file(lines: _Lines, bounds: Bounds) -> FilePatch:
    before = _path(lines.next()[4:], "a/", bounds)
    header = lines.next()
    if not header.startswith("+++ "):
        raise DiffError(f"line {lines.at}: expected '+++ ', found {header[:60]!r}")
    after = _path(header[4:], "b/", bounds)
    if before is None and after is None:
        raise DiffError(f"line {lines.at}: both paths are /dev/null")
    if before is not None and after is not None and before != after:
        raise DiffError(f"line {lines.at}: {before} would be renamed to {after}")
    patch = FilePatch(before, after, list(_hunks(lines)))
    if not patch.hunks and before is not None and after is not None:
        raise DiffError(f"line {lines.at}: no hunk for {before}")
    return patch


def _path(text: str, prefix: str, bounds: Bounds) -> str | None:
    name = text.split("\t", 1)[0]
    if name == NOWHERE:
        return None
    path = name.removeprefix(prefix)
    if path == name:
        raise DiffError(f"path {name[:60]!r}: expected a path that begins with {prefix}")
    if not 0 < len(path) <= bounds.path_length or not path.isprintable() or "\\" in path or '"' in path:
        raise DiffError(f"path {path[:60]!r}: not a plain name")
    if any(part in ("", ".", "..", ".git") for part in path.split("/")):
        raise DiffError(f"path {path[:60]!r}: leaves the workspace")
    if any(len(part.encode()) > _LONGEST_NAME for part in path.split("/")):
        raise DiffError(f"path {path[:60]!r}: a name of more than {_LONGEST_NAME} bytes")
    return path


def _hunks(lines: _Lines) -> Iterator[Hunk]:
    while (line := lines.peek()) is not None and line.startswith("@@"):
        match = _HUNK.fullmatch(lines.next())
        if match is None:
            raise DiffError(f"line {lines.at}: not a hunk header: {line[:60]!r}")
        old_start, new_start = int(match[1]), int(match[3])
        old_count, new_count = (1 if match[i] is None else int(match[i]) for i in (2, 4))
        # The start of an empty range is the line before it; that of any other range is its first line.
        if (old_start < 1 and old_count) or (new_start < 1 and new_count):
            raise DiffError(f"line {lines.at}: lines count from 1")
        yield _hunk(lines, Hunk(old_start - 1 if old_count else old_start), old_count, new_count)


def _hunk(lines: _Lines, hunk: Hunk, old_count: int, new_count: int) -> Hunk:
    while len(hunk.old) < old_count or len(hunk.new) < new_count:
        line = lines.next()
        sides = {" ": (hunk.old, hunk.new), "-": (hunk.old,), "+": (hunk.new,)}.get(line[:1])
        if sides is None:
            raise DiffError(f"line {lines.at}: expected ' ', '-' or '+', found {line[:60]!r}")
        text = line[1:] + "\n"
        if lines.peek() == _NO_NEWLINE:
            lines.next()
            text = line[1:]
        for side in sides:
            side.append(text)
    if len(hunk.old) != old_count or len(hunk.new) != new_count:
        raise DiffError(f"line {lines.at}: the hunk is longer than its header says")
    return hunk


def _apply(text: str, patch: FilePatch) -> str:
    old = split_lines(text)
    new: list[str] = []
    at = 0
    for hunk in patch.hunks:
        end = hunk.start + len(hunk.old)
        if hunk.start < at or old[hunk.start : end] != hunk.old or hunk.start > len(old):
            raise DiffError(f"{patch.before or patch.after}: the hunk at line {hunk.start + 1} does not match the file")
        new += old[at : hunk.start] + hunk.new
        at = end
    new += old[at:]
    if any(not line.endswith("\n") for line in new[:-1]):
        raise DiffError(f"{patch.before or patch.after}: a line without a newline in the middle")
    return "".join(new)
