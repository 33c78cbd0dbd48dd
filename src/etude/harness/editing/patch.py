"""Parses and applies the patch format that many models were trained to write.

    *** Begin Patch
    *** Update File: path/of.py
    *** Move to: new/path.py          (optional: the file's new path)
    @@ def the_function(              (optional: the hunk is after this line)
     kept line
    -removed line
    +added line
    *** Add File: other.py
    +added line
    *** Delete File: old.py
    *** End Patch

Hunks have no line numbers: each is located after the previous one by its kept and removed lines. If these have no exact
match, trailing white space is ignored, then indentation as well; such an inexact match must be the only one. If any
hunk does not match, nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

BEGIN, END = "*** Begin Patch", "*** End Patch"
ADD, DELETE, UPDATE, MOVE = "*** Add File: ", "*** Delete File: ", "*** Update File: ", "*** Move to: "
END_OF_FILE = "*** End of File"
STAYS, GOES, COMES = " ", "-", "+"


Likeness = Callable[[str], str]
"""Function that maps a line to a comparison key; two lines match if their keys are equal."""


class BadPatch(Exception):
    """The patch cannot be parsed, or does not match the files. The message is for the model."""


@dataclass(slots=True)
class Hunk:
    behind: list[str] = field(default_factory=list)
    """Lines given after `@@`. The file must contain them in this order, before the hunk."""
    lines: list[tuple[str, str]] = field(default_factory=list)
    """Each line's sign and text. The sign is STAYS (kept), GOES (removed) or COMES (added)."""
    at_end: bool = False

    @property
    def old(self) -> list[str]:
        return [line for sign, line in self.lines if sign != COMES]

    def new(self, there: Sequence[str]) -> Iterator[str]:
        """Yield the lines that replace `there`, the matched lines of the file. Kept lines are taken from the file, not
        from the patch, so that their white space does not change."""
        left = iter(there)
        for sign, line in self.lines:
            if sign == COMES:
                yield line
                continue
            kept = next(left)
            if sign == STAYS:
                yield kept


@dataclass(slots=True)
class FileChange:
    path: str
    target: str
    """Path of the file after the patch; empty for a deleted file."""
    hunks: list[Hunk] = field(default_factory=list)
    content: str | None = None


def parse_patch(text: str) -> list[FileChange]:
    lines = text.strip("\n").split("\n")
    if lines[0].strip() != BEGIN:
        raise BadPatch(f"a patch begins with {BEGIN!r}")
    if lines[-1].strip() != END:
        raise BadPatch(f"a patch ends with {END!r}")
    changes: list[FileChange] = []
    for number, line in enumerate(lines[1:-1], 2):
        if line.startswith(ADD):
            path = line.removeprefix(ADD).strip()
            changes.append(FileChange(path, path, content=""))
        elif line.startswith(DELETE):
            changes.append(FileChange(line.removeprefix(DELETE).strip(), ""))
        elif line.startswith(UPDATE):
            path = line.removeprefix(UPDATE).strip()
            changes.append(FileChange(path, path))
        elif not changes or not _take(changes[-1], line):
            raise BadPatch(f"line {number} of the patch is not allowed at this point: {line[:80]!r}")
    for change in changes:
        change.hunks = [hunk for hunk in change.hunks if hunk.lines]
        if change.content is None and change.target == change.path and not change.hunks:
            raise BadPatch(f"{change.path}: nothing is changed")
    if not changes:
        raise BadPatch("the patch names no file")
    return changes


def _take(change: FileChange, line: str) -> bool:
    """Add one line of the patch to the change of a file. Return False if the line is not allowed at this point."""
    if change.content is not None:
        if not line.startswith("+"):
            return False
        change.content += f"{line[1:]}\n"
        return True
    if not change.target:
        return False
    hunk = change.hunks[-1] if change.hunks else None
    if line.startswith(MOVE) and hunk is None and change.target == change.path:
        change.target = line.removeprefix(MOVE).strip()
        return True
    if line.startswith("@@"):
        behind = line[2:].removeprefix(" ")
        if hunk is None or hunk.lines:
            change.hunks.append(hunk := Hunk())
        hunk.behind += [behind] if behind.strip() else []
        return True
    if hunk is None:
        change.hunks.append(hunk := Hunk())
    if line.rstrip() == END_OF_FILE:
        hunk.at_end = True
        return True
    sign = line[:1] or STAYS  # models often omit the sign of an empty kept line
    if hunk.at_end or sign not in (STAYS, GOES, COMES):
        return False
    hunk.lines.append((sign, line[1:]))
    return True


def apply_patch(
    changes: Sequence[FileChange], files: Mapping[str, str], *, exactly: bool = False
) -> dict[str, str | None]:
    """Return the new contents of each file that the patch changes; None for a removed file. Raises BadPatch. A second
    change of a file applies to the result of the first. With `exactly`, white space must match exactly."""
    after: dict[str, str | None] = {}

    def now(path: str) -> str | None:
        return after[path] if path in after else files.get(path)

    for change in changes:
        text = now(change.path)
        if change.content is not None:
            if text is not None:
                raise BadPatch(f"{change.path} exists already: update it")
            after[change.path] = change.content
            continue
        if text is None:
            raise BadPatch(f"there is no file {change.path!r}")
        if change.target != change.path:
            if change.target and now(change.target) is not None:
                raise BadPatch(f"{change.target} exists already")
            after[change.path] = None
        if change.target:
            after[change.target] = _updated(change, text, (_exact,) if exactly else _LIKENESSES)
    return after


def _updated(change: FileChange, text: str, likenesses: Sequence[Likeness]) -> str:
    ended = text.endswith("\n") or not text
    lines = text.removesuffix("\n").split("\n") if text else []
    result: list[str] = []
    done = 0
    """Number of lines of the old text that have been copied to the result or replaced."""
    for hunk in change.hunks:
        start = done
        for line in hunk.behind:
            start = _line_behind(lines, line, start, change.path, likenesses)
        place = _place_of(hunk, lines, start, change.path, likenesses)
        end = place + len(hunk.old)
        result += [*lines[done:place], *hunk.new(lines[place:end])]
        done = end
    result += lines[done:]
    return "\n".join(result) + ("\n" if ended and result else "")


def _line_behind(lines: Sequence[str], wanted: str, start: int, path: str, likenesses: Sequence[Likeness]) -> int:
    """Return the index after the first line from `start` on that matches `wanted`."""
    for likeness in likenesses:
        for number in range(start, len(lines)):
            if likeness(lines[number]) == likeness(wanted):
                return number + 1
    raise BadPatch(f"{path} has no line {wanted[:80]!r} after line {start}")


def _place_of(hunk: Hunk, lines: Sequence[str], start: int, path: str, likenesses: Sequence[Likeness]) -> int:
    """Return the index, from `start` on, at which the file's lines match the hunk's kept and removed lines.
    `likenesses` are the line comparisons to try, the strictest first."""
    old = hunk.old
    if not old:
        # A hunk that only adds lines goes after the line given with `@@`, or to the end of the file.
        return start if hunk.behind and not hunk.at_end else len(lines)
    for likeness in likenesses:
        places = list(_matches(hunk, lines, start, likeness))
        if places and (likeness is _exact or len(places) == 1):
            return places[-1] if hunk.at_end else places[0]
        if places:
            raise BadPatch(
                f"{path}: the lines from {old[0][:80]!r} on match in {len(places)} places, but nowhere exactly"
            )
    raise BadPatch(f"{path} has no such lines after line {start}: {old[0][:80]!r} ...")


def _matches(hunk: Hunk, lines: Sequence[str], start: int, likeness: Likeness) -> Iterator[int]:
    wanted = [likeness(line) for line in hunk.old]
    held = [likeness(line) for line in lines]
    last = len(lines) - len(wanted)
    for place in range(last if hunk.at_end else start, last + 1):
        if place >= start and held[place : place + len(wanted)] == wanted:
            yield place


def _exact(line: str) -> str:
    return line


_LIKENESSES = (_exact, str.rstrip, str.strip)
