"""Counts how many lines of accepted edits are still in the folder after fixed times, and logs the counts.

A count is logged as a signal (an observation in the session's log) with the name `edits_kept`. No process runs at the
fixed times: the lines are counted when a command next reads the sessions, and the signal records when that was.
Invariant: there is one signal per edit and fixed time, and the folder is only read.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from etude.harness.editing.diff import as_text, equal_ends
from etude.harness.sessions.record import SessionError, SessionRecord
from etude.harness.sessions.replay import SavedSession, load_session, sessions_of

AFTER_SECONDS = (60, 600, 3_600, 86_400, 604_800)
"""Times after the acceptance of an edit for which its kept lines are counted: a minute to a week."""
_MOST_LINES = 5_000
"""Maximum number of lines between the first and the last difference of two texts for these lines to be aligned."""
_MOST_BYTES = 4_000_000

Read = Callable[[str], bytes | None]
"""Function that returns the current contents of a file in the user's folder; None if it cannot be read."""


def record_kept_lines(session: SavedSession, *, now: float | None = None) -> list[dict[str, Any]]:
    """Log an `edits_kept` signal for each accepted edit and each time of AFTER_SECONDS that has passed since, unless
    the session has it already. Return the new signals."""
    folder = session.about.get("folder")
    if not folder or not Path(folder).is_dir():
        return []
    found = list(due_signals(session, lambda path: _read(Path(folder), path), time.time() if now is None else now))
    if not found:
        return []
    record = SessionRecord.for_signals(session.folder)
    try:
        for signal in found:
            record.signal("edits_kept", **signal)
            session.signals.append({"what": "edits_kept", **signal})
    finally:
        record.close()
    return found


def record_all_kept_lines(sessions: Path, user: Path) -> None:
    for place in sessions_of(sessions, user):
        # A damaged session is skipped; `etude sessions check` reports it.
        with suppress(SessionError):
            record_kept_lines(load_session(place))


def due_signals(session: SavedSession, read: Read, now: float) -> Iterator[dict[str, Any]]:
    """Yield the fields of each `edits_kept` signal that is due at the Unix time `now` and not yet written."""
    done = {(s["accepted"], s["after_seconds"]) for s in session.signals if s["what"] == "edits_kept"}
    for signal in session.signals:
        if signal["what"] != "edits_accepted":
            continue
        accepted = signal["time"]
        times = [after for after in AFTER_SECONDS if accepted + after <= now and (accepted, after) not in done]
        if not times:
            continue
        files = _count(session, signal.get("changes", {}), read)
        for after in times:
            yield {
                "accepted": accepted,
                "after_seconds": after,
                "looked_after_seconds": round(now - accepted, 3),
                "lines_added": sum(added for added, _ in files.values()),
                "lines_kept": sum(kept for _, kept in files.values()),
                "files": {path: list(counts) for path, counts in files.items()},
            }


def _count(session: SavedSession, changes: Mapping[str, Any], read: Read) -> dict[str, tuple[int, int]]:
    """Return the numbers of added and of kept lines of each file of an accepted edit. `changes` has the digests of each
    file's contents before and after it."""
    counts = {}
    for path, change in changes.items():
        before, now = session.content(change["before"]) or b"", session.content(change["now"]) or b""
        counts[path] = kept_lines(before, now, read(path) or b"")
    return counts


def kept_lines(before: bytes, accepted: bytes, today: bytes) -> tuple[int, int]:
    """Return how many lines a change added, and how many of them are still in the file today, even at another place.
    Blank lines do not count; a file that is not text has none."""
    texts = [as_text(data) for data in (before, accepted, today)]
    if None in texts:
        return 0, 0
    old, new, found = ([line.strip() for line in (text or "").splitlines()] for text in texts)
    added = [place for place in _added(old, new) if new[place]]
    standing = dict(_equal(new, found))
    kept = sum(place in standing for place in added)
    # An added line that moved is kept if today's file has an equal line that is not aligned with another line.
    explained = set(standing.values())
    free = Counter(line for place, line in enumerate(found) if place not in explained)
    for place in added:
        if place not in standing and free[new[place]] > 0:
            free[new[place]] -= 1
            kept += 1
    return len(added), kept


def _added(old: list[str], new: list[str]) -> list[int]:
    """Return the indexes of the lines that `new` adds to `old`. A line that only moved is not added."""
    pairs = dict(_equal(old, new))
    same, gone = set(pairs.values()), Counter(line for place, line in enumerate(old) if place not in pairs)
    added = []
    for place, line in enumerate(new):
        if place not in same:
            if gone[line] > 0:
                gone[line] -= 1
            else:
                added.append(place)
    return added


def _equal(one: list[str], other: list[str]) -> Iterator[tuple[int, int]]:
    """Align two texts: yield the index pairs of corresponding equal lines, in increasing order."""
    head, tail = equal_ends(one, other)
    ends = len(one) - tail, len(other) - tail
    yield from ((place, place) for place in range(head))
    if max(ends) - head <= _MOST_LINES:
        between = SequenceMatcher(None, one[head : ends[0]], other[head : ends[1]], autojunk=False)
        for start, place, size in between.get_matching_blocks():
            yield from ((head + start + n, head + place + n) for n in range(size))
    yield from ((ends[0] + n, ends[1] + n) for n in range(tail))


def _read(folder: Path, path: str) -> bytes | None:
    target = folder / path
    try:
        if not target.is_file() or target.stat().st_size > _MOST_BYTES:
            return None
        return target.read_bytes()
    except OSError:
        return None
