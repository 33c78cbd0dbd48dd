"""The terminal output of a run: one line per stage, updated while the stage works, then its result."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from etude.journal import Journal, ProgressLine

_UNITS = {
    "tasks": "tasks",
    "corpus": "parts",
    "demonstrations": "episodes",
    "continued": "seconds",
    "evaluate": "rollouts",
}


class Screen:
    def __init__(self, journal: Journal, console: Console | None = None) -> None:
        self._journal = journal
        self._console = console or Console(stderr=True)
        self._line: ProgressLine | None = None
        self._title = ""

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def skipped(self, title: str, seconds: float) -> None:
        self.say(f"{title:<17} done before, in {seconds:.0f} s")

    def started(self, title: str, *, resumed: bool) -> None:
        self._title = title
        if resumed:
            self.say(f"{title:<17} was interrupted: going on where it was")

    def update(self, stage: str, values: dict[str, Any]) -> None:
        """Update the stage's progress line. `values` has "step" and "total", and optionally loss, solved, staleness and
        tokens_per_second."""
        if values.get("total") is None or values.get("step") is None:
            return
        if self._line is None:
            unit = _UNITS.get(stage, "steps")
            start = values["step"]
            self._line = ProgressLine(self._title, values["total"], start=start, unit=unit, journal=self._journal)
            self._line.__enter__()
        rate = values.get("tokens_per_second") or None
        self._line.update(values["step"], rate=rate, rate_unit="tokens/s" if rate else "", note=_note(values))

    def note(self, text: str) -> None:
        self.say(f"{self._title:<17} {text}")

    def ended(self, *, done: bool, seconds: float) -> None:
        if self._line is not None:
            self._line.__exit__(None, None, None)
            self._line = None
        self.say(f"{self._title:<17} {'done' if done else 'stopped'} after {seconds:.0f} s")


def _note(values: dict[str, Any]) -> str:
    shown = [f"{name} {values[name]:.3g}" for name in ("loss", "solved", "staleness") if values.get(name) is not None]
    return "  ".join(shown)
