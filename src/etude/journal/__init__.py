"""A run's folder: events, metrics, who waited for whom, progress.

Append-only, one file per process, merged on read."""

from etude.journal.journal import Journal, JournalError
from etude.journal.paths import RunPaths
from etude.journal.progress import ProgressLine
from etude.journal.read import Entry, read_journal, waits
from etude.journal.waiting import WaitExpired, Waiting

__all__ = [
    "Entry",
    "Journal",
    "JournalError",
    "ProgressLine",
    "RunPaths",
    "WaitExpired",
    "Waiting",
    "read_journal",
    "waits",
]
