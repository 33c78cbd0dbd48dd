"""Nudges: messages to a model whose turn was cut off, was empty, or repeats the same calls.

Nudges do not end a run: a model that repeats its calls or is cut off goes on until a budget is used up. If the profile
has no text for a situation, no nudge is sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from etude.harness.context.profile import Profile
from etude.trace.conversation.messages import Turn
from etude.trace.trace import ToolEvent

SILENCES = 2
"""Maximum number of consecutive empty messages that get a nudge; the next empty message ends the run."""
REPEATS = 3
"""Number of consecutive turns with equal calls and results after which a nudge is sent. Another nudge is sent after
each further REPEATS such turns."""


class Nudges:
    """Repetition and silence counters of one run."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._silences = 0
        self._last: list[tuple[str, str, str]] = []
        self._same = 0

    def after(self, turn: Turn, answers: Sequence[ToolEvent]) -> list[str]:
        """Return the nudges to send after a turn; `answers` are the results of its calls.

        If a turn has no calls and the returned list is empty, the turn is the final answer.
        """
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
