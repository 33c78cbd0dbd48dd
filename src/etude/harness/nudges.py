"""What is said to a model that gets nowhere: it was cut off, it said nothing, or it does the same again and again.

A nudge never ends a run, and a run never waits for one: budgets end it. A profile that has no words for an occasion
says nothing there.
"""

from __future__ import annotations

from collections.abc import Sequence

from etude.harness.policy import Turn
from etude.harness.profile import Profile
from etude.trace.trace import ToolEvent

SILENCES = 2
"""Empty messages in a row that are answered; the next one is taken for the end."""
REPEATS = 3
"""Turns in a row with the same calls and the same answers, after which it is told, and again after as many more."""


class Nudges:
    """Of one run."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._silences = 0
        self._last: list[tuple[str, str, str]] = []
        self._same = 0

    def after(self, turn: Turn, answers: Sequence[ToolEvent]) -> list[str]:
        """What to say after a turn; where there is nothing, one without calls was an answer."""
        if not turn.calls:
            return self._after_words(turn)
        self._silences = 0
        done = [(event.name, event.arguments, event.output) for event in answers]
        self._same = self._same + 1 if done == self._last else 1
        self._last = done
        said = self._profile.repeated
        return [said.format(count=self._same)] if said and self._same % REPEATS == 0 else []

    def _after_words(self, turn: Turn) -> list[str]:
        if turn.cut_off:
            return [self._profile.cut_off]
        if turn.text.strip() or not self._profile.silent or self._silences == SILENCES:
            return []
        self._silences += 1
        return [self._profile.silent]
