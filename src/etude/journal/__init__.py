"""A run's folder: events, metrics, who waited for whom, progress.

Append-only, one file per process, merged on read. And the two ways to write a file that a kill cannot spoil: rows that
are appended, and files that are replaced whole."""

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
