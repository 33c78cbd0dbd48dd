"""A live progress line per stage: bar, throughput, time left. Without a terminal, a plain line every few seconds.

The same numbers go to the journal, at most once a second.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from etude.journal.journal import Journal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

_WINDOW_SECONDS = 30.0
"""Window over which throughput and time left are estimated."""
_JOURNAL_SECONDS = 1.0


class ProgressLine:
    """The progress line of one stage. The work before `start`, where a resumed stage begins, does not count towards
    throughput."""

    def __init__(
        self,
        stage: str,
        total: float,
        *,
        start: float = 0,
        unit: str = "steps",
        journal: Journal | None = None,
        console: Console | None = None,
        plain_seconds: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stage, self.total, self.unit, self.done = stage, total, unit, start
        self._journal = journal
        self._console = console or _stderr()
        self._plain_seconds = plain_seconds
        self._clock = clock
        self._pace: deque[tuple[float, float]] = deque([(clock(), start)])
        self._plain_at = self._journal_at = float("-inf")
        self._plain_done: float | None = None
        self._rate: float | None = None
        self._rate_unit = self._note = ""
        self._live: Progress | None = None
        self._task: TaskID

    def __enter__(self) -> ProgressLine:
        if self._console.is_terminal:
            from rich.progress import BarColumn, Progress, TextColumn

            name, shown = TextColumn("{task.description:<17}"), TextColumn("{task.fields[shown]}")
            self._live = Progress(name, BarColumn(bar_width=28), shown, console=self._console, refresh_per_second=4)
            self._task = self._live.add_task(self.stage, total=self.total, shown="")
            self._live.update(self._task, completed=self.done)
            self._live.start()
        return self

    def update(self, done: float, *, rate: float | None = None, rate_unit: str = "", note: str = "") -> None:
        """Show progress. `rate` is a throughput other than `done` per second, such as tokens/s; `note` is any text."""
        now = self._clock()
        self.done, self._rate, self._rate_unit, self._note = done, rate, rate_unit, note
        self._pace.append((now, done))
        while len(self._pace) > 2 and now - self._pace[1][0] > _WINDOW_SECONDS:
            self._pace.popleft()
        if self._live is not None:
            self._live.update(self._task, completed=done, shown=self.text())
        elif now - self._plain_at >= self._plain_seconds:
            self._plain_at = now
            self._print_plain()
        if self._journal is not None and now - self._journal_at >= _JOURNAL_SECONDS:
            self._journal_at = now
            self._write_journal()

    def text(self) -> str:
        """Return the text beside the bar, such as `120/600 steps  12.3k tokens/s  0:40 left  loss 1.2`."""
        parts = [f"{_short(self.done)}/{_short(self.total)} {self.unit}"]
        pace = self._per_second()
        if self._rate is not None:
            parts.append(f"{_short(self._rate)} {self._rate_unit}")
        elif pace:
            parts.append(f"{_short(pace)} {self.unit}/s" if pace >= 1 else f"{1 / pace:.1f} s each")
        if pace and self.done < self.total:
            parts.append(f"{_clock_text((self.total - self.done) / pace)} left")
        if self._note:
            parts.append(self._note)
        return "  ".join(parts)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        elif self.done != self._plain_done:
            self._print_plain()
        if self._journal is not None:
            self._write_journal()

    def _per_second(self) -> float:
        (first_time, first_done), (last_time, last_done) = self._pace[0], self._pace[-1]
        return (last_done - first_done) / (last_time - first_time) if last_time > first_time else 0.0

    def _print_plain(self) -> None:
        self._plain_done = self.done
        self._console.print(f"{self.stage:<17} {self.text()}", markup=False, highlight=False, soft_wrap=True)

    def _write_journal(self) -> None:
        assert self._journal is not None
        rate, unit = (self._rate, self._rate_unit) if self._rate is not None else (self._per_second(), f"{self.unit}/s")
        self._journal.progress(self.stage, self.done, self.total, rate=rate, unit=unit)


def _stderr() -> Console:
    # Imported late: rich takes longer to load than the rest of this package together.
    from rich.console import Console

    return Console(stderr=True)


def _short(number: float) -> str:
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= size:
            return f"{number / (1e3 if suffix == 'k' else size):.1f}{suffix}"
    return f"{number:.0f}" if number == int(number) else f"{number:.1f}"


def _clock_text(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
