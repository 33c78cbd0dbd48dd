"""Converts patches of other tools to plain diffs: no renames, no binary parts, every blank line explicit.

The grader accepts only plain diffs (tasks/diff.py). Patches in git's wider syntax are converted if that needs no
guessing, and refused otherwise: hunks are never moved, and context is never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator

from etude.harness.editing.diff import unified_diff
from etude.tasks.diff import DiffError, FilePatch, Hunk, apply_diff, parse_diff
from etude.tasks.verifiers.swebench import WIDE

Read = Callable[[str], bytes | None]
_DROPPED = re.compile(r"(dis)?similarity index .*|index [0-9a-f]+\.\.[0-9a-f]+ .*|index [0-9a-f]+\.\.[0-9a-f]+")
_HUNK = re.compile(r"@@ -\d{1,9}(?:,(\d{1,9}))? \+\d{1,9}(?:,(\d{1,9}))? @@")
_MOVED = re.compile(r"(rename|copy) (from|to) (.+)")


def plain_diff(patch: str, read: Read, left_out: Collection[str] = ()) -> str:
    """Return the patch as a plain diff. `read` returns a file's contents before the patch, which renames and copies
    need. Binary parts of `left_out` are dropped. Raises DiffError for other binary parts, and for a rename or copy of
    an unknown file."""
    patch = patch if not patch or patch.endswith("\n") else patch + "\n"
    return "".join(text for section in _sections(patch) for text in _plain(section, read, left_out))


def reversed_diff(diff: str) -> str:
    """Return the diff that undoes a diff. Context lines become changed lines: parsed hunks do not tell them apart."""
    return "".join(
        _render(FilePatch(patch.after, patch.before, _reversed_hunks(patch.hunks))) for patch in parse_diff(diff, WIDE)
    )


def _sections(patch: str) -> Iterator[list[str]]:
    """Split a patch at git's headers, one section per file. No line inside a hunk begins like such a header."""
    section: list[str] = []
    for line in patch.split("\n")[:-1]:
        if line.startswith("diff --git ") and section:
            yield section
            section = []
        section.append(line)
    if section:
        yield section


def _plain(lines: list[str], read: Read, left_out: Collection[str]) -> Iterator[str]:
    body = next((at for at, line in enumerate(lines) if line.startswith("--- ")), len(lines))
    head = lines[:body]
    binary = next((line for line in head if line.startswith(("Binary files ", "GIT binary patch"))), "")
    if binary:
        path = head[0].rpartition(" b/")[2]
        if path in left_out:
            return
        raise DiffError(f"{path}: a binary part, which a text diff cannot express")
    if not lines[0].startswith("diff --git "):
        # Text above the first header is prose.
        yield "".join(f"{line}\n" for line in _with_context_blanks(lines[body:]))
        return
    moves = [found for line in head if (found := _MOVED.fullmatch(line))]
    if not moves:
        kept = [line for line in head if not _DROPPED.fullmatch(line)]
        yield "".join(f"{line}\n" for line in (*kept, *_with_context_blanks(lines[body:])))
        return
    kind, ends = moves[0][1], {found[2]: found[3] for found in moves}
    before, after = ends.get("from", ""), ends.get("to", "")
    content = read(before)
    if content is None:
        raise DiffError(f"{before}: a {kind} to {after} of a file whose contents are not known")
    hunks = "".join(f"{line}\n" for line in _with_context_blanks(lines[body + 2 :]))
    text = content.decode("utf-8", "surrogateescape")
    if hunks:
        text = apply_diff({before: text}, f"--- a/{before}\n+++ b/{before}\n{hunks}", WIDE)[before]
    gone = {before: content} if kind == "rename" else {}
    yield unified_diff(gone, {after: text.encode("utf-8", "surrogateescape")})


def _with_context_blanks(lines: list[str]) -> Iterator[str]:
    """Restore the blank of empty context lines, which some tools strip. Drop empty lines between hunks."""
    old = new = 0
    for line in lines:
        if not (old or new):
            if found := _HUNK.match(line):
                old, new = (1 if count is None else int(count) for count in found.groups())
            if line:
                yield line
            continue
        sign = line[:1] or " "
        old, new = old - (sign in " -"), new - (sign in " +")
        yield line or " "


def _reversed_hunks(hunks: list[Hunk]) -> list[Hunk]:
    turned, shift = [], 0
    for hunk in hunks:
        turned.append(Hunk(hunk.start + shift, hunk.new, hunk.old))
        shift += len(hunk.new) - len(hunk.old)
    return turned


def _render(patch: FilePatch) -> str:
    before = "/dev/null" if patch.before is None else f"a/{patch.before}"
    after = "/dev/null" if patch.after is None else f"b/{patch.after}"
    path = patch.after or patch.before
    if not patch.hunks:
        if patch.before is not None and patch.after is not None:
            return ""  # Only its mode changed.
        verb = "new" if patch.before is None else "deleted"
        return f"diff --git a/{path} b/{path}\n{verb} file mode 100644\n"
    parts, shift = [f"--- {before}\n+++ {after}\n"], 0
    for hunk in patch.hunks:
        parts.append(f"@@ -{_range(hunk.start, hunk.old)} +{_range(hunk.start + shift, hunk.new)} @@\n")
        parts += [_line("-", line) for line in hunk.old] + [_line("+", line) for line in hunk.new]
        shift += len(hunk.new) - len(hunk.old)
    return "".join(parts)


def _range(start: int, lines: list[str]) -> str:
    # The start of an empty range is the line before it; that of any other range is its first line.
    return f"{start + 1 if lines else start},{len(lines)}"


def _line(sign: str, line: str) -> str:
    return f"{sign}{line}" if line.endswith("\n") else f"{sign}{line}\n\\ No newline at end of file\n"
