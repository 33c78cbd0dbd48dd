"""Three-way merge of texts, by lines.

Invariant: a region that only one side changed takes that side's version; a region that both sides changed in the same
way takes the common version; anything else is a conflict. Changes in adjacent lines conflict too, since neither side
has seen their combination.

`git merge-file` is not used, because git may not be installed and the result must not depend on it. Tests compare the
results of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from etude.harness.editing.diff import as_text, equal_ends

Lines = Sequence[str]


def merge(start: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """Return the text `start` with the changes of both `ours` and `theirs`. Return None if their changes conflict, or
    if the three versions all differ and one is not text."""
    texts = [as_text(data) for data in (start, ours, theirs)]
    if ours == theirs or start == theirs:
        return ours
    if start == ours:
        return theirs
    lines = [text.split("\n") for text in texts if text is not None]
    if len(lines) < 3:
        return None
    merged: list[str] = []
    for base, left, right in _regions(*lines):
        if left == base:
            merged += right
        elif right in (base, left):
            merged += left
        else:
            return None
    return "\n".join(merged).encode()


def _regions(base: Lines, left: Lines, right: Lines) -> Iterator[tuple[Lines, Lines, Lines]]:
    """Split the three texts into corresponding regions and yield them in order: regions that are equal in all three
    texts, and the differing regions between them."""
    at_base = at_left = at_right = 0
    for in_base, in_left, in_right, size in _common(base, left, right):
        yield base[at_base:in_base], left[at_left:in_left], right[at_right:in_right]
        kept = base[in_base : in_base + size]
        yield kept, kept, kept
        at_base, at_left, at_right = in_base + size, in_left + size, in_right + size
    yield base[at_base:], left[at_left:], right[at_right:]


def _common(base: Lines, left: Lines, right: Lines) -> Iterator[tuple[int, int, int, int]]:
    """Yield each block of lines of `base` that both changed texts, `left` and `right`, have kept: the block's start
    indexes in base, left and right, and its number of lines."""
    kept_left, kept_right = _kept(base, left), _kept(base, right)
    i = j = 0
    while i < len(kept_left) and j < len(kept_right):
        (base_l, in_left, size_l), (base_r, in_right, size_r) = kept_left[i], kept_right[j]
        begin, end = max(base_l, base_r), min(base_l + size_l, base_r + size_r)
        if begin < end:
            yield begin, in_left + begin - base_l, in_right + begin - base_r, end - begin
        if base_l + size_l < base_r + size_r:
            i += 1
        else:
            j += 1


def _kept(base: Lines, side: Lines) -> list[tuple[int, int, int]]:
    """Return each block of lines of `base` that the changed text `side` has kept: the block's start indexes in base and
    side, and its number of lines."""
    head, tail = equal_ends(base, side)
    middle = SequenceMatcher(None, base[head : len(base) - tail], side[head : len(side) - tail], autojunk=False)
    found = [(m.a + head, m.b + head, m.size) for m in middle.get_matching_blocks() if m.size]
    return [(0, 0, head), *found, (len(base) - tail, len(side) - tail, tail)]
