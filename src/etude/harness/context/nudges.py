"""Messages to a model that gets nowhere: it was cut off, said nothing, or repeats the same calls.

A nudge never ends a run, and a run never waits for one: budgets end it. There is no nudge where the profile has no text
for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from etude.harness.context.profile import Profile
from etude.harness.policy import Turn
from etude.trace.trace import ToolEvent

SILENCES = 2
"""Number of empty messages in a row that get a nudge; the next one ends the run."""
REPEATS = 3
"""Number of turns in a row with equal calls and results that get a nudge, and another after as many more."""


class Nudges:
    """Repetition and silence counters of one run."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._silences = 0
        self._last: list[tuple[str, str, str]] = []
        self._same = 0

    def after(self, turn: Turn, answers: Sequence[ToolEvent]) -> list[str]:
        """Return the nudges for a turn. If there are none, a turn without calls is the final answer."""
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
