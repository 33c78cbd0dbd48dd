"""The edit distance of two texts in characters: how many to insert, delete or replace.

Myers' algorithm in the form of Hyyrö: a column of the table is two integers of one bit per character, and a column
follows from the one before by a dozen operations on whole integers. Ten thousand characters take a tenth of a second.
"""

from __future__ import annotations

from collections import defaultdict

from etude.harness.editing.diff import equal_ends


def edit_distance(one: str, other: str) -> int:
    start, end = equal_ends(one, other)
    one, other = one[start : len(one) - end], other[start : len(other) - end]
    rows, columns = (one, other) if len(one) >= len(other) else (other, one)
    if not columns:
        return len(rows)
    places: dict[str, int] = defaultdict(int)
    for place, letter in enumerate(rows):
        places[letter] |= 1 << place
    whole, last = (1 << len(rows)) - 1, 1 << (len(rows) - 1)
    rises, falls, distance = whole, 0, len(rows)  # bits: where the column rises or falls by one from row to row
    for letter in columns:
        equal = places.get(letter, 0)
        across = equal | falls
        down = (((equal & rises) + rises) ^ rises) | equal
        right_rises = falls | (whole & ~(down | rises))
        right_falls = rises & down
        distance += bool(right_rises & last) - bool(right_falls & last)
        right_rises = (right_rises << 1 | 1) & whole
        right_falls = right_falls << 1 & whole
        rises = right_falls | (whole & ~(across | right_rises))
        falls = right_rises & across
    return distance


def share_wrong(answer: str, right: str) -> float:
    """Return the distance as a share of the longer text: 0 for equal texts, 1 for those with nothing in common.

    What is much longer than the right text is not compared to its end: all of the rest counts as wrong."""
    most = 4 * len(right) + 1000
    distance = edit_distance(answer[:most], right) + max(0, len(answer) - most)
    return distance / max(len(answer), len(right), 1)
