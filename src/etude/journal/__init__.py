"""The journal of a run: events, metrics, waits and progress.

Each process appends to its own file, and reading merges all files by time. The package also holds the paths of a run's
folder and the two kill-safe ways to write a file: appending rows, and replacing a file atomically.
"""

from etude.journal.files import write_atomically
from etude.journal.journal import Journal, JournalError
from etude.journal.lines import append_rows, drop_torn_line, read_metrics, read_rows, whole_lines
from etude.journal.paths import RunPaths
from etude.journal.progress import ProgressLine
from etude.journal.read import Entry, Span, read_journal, wait_spans, waits
from etude.journal.source import code_digest
from etude.journal.waiting import WaitExpired, Waiting

__all__ = [
    "Entry",
    "Journal",
    "JournalError",
    "ProgressLine",
    "RunPaths",
    "Span",
    "WaitExpired",
    "Waiting",
    "append_rows",
    "code_digest",
    "drop_torn_line",
    "read_journal",
    "read_metrics",
    "read_rows",
    "wait_spans",
    "waits",
    "whole_lines",
    "write_atomically",
]
