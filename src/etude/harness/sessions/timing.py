"""Timing for a session's signals: how long things took, and when they happened.

Invariant: signals report only what was observed. Whether a follow-up corrects the agent, or why the user interrupted
it, is for readers of the signals to judge.
"""

from __future__ import annotations

from collections.abc import Mapping


class Clock:
    """Clock of one session. The caller passes the time in Unix seconds."""

    def __init__(self) -> None:
        self._begun: float | None = None
        self._stopped: float | None = None
        self._turns: list[Mapping[str, float]] = []
        self._summaries: list[Mapping[str, float]] = []

    def was_stopped(self, when: float | None) -> None:
        """Set when the last run of a resumed session ended; None if it never ended."""
        self._stopped = when

    def asked(self, now: float) -> float | None:
        """Start a request. Return the seconds since the last one was answered; None if unknown."""
        after = None if self._stopped is None else round(max(0.0, now - self._stopped), 3)
        self._begun, self._turns, self._summaries = now, [], []
        return after

    def turned(self, seconds: Mapping[str, float]) -> None:
        self._turns.append(seconds)

    def summarised(self, seconds: Mapping[str, float]) -> None:
        self._summaries.append(seconds)

    def stopped(self, now: float) -> dict[str, float | int | None]:
        """End a run, and return what the user waited for. The start of a run that is resumed after a kill is unknown,
        so its total is the time of its turns alone."""
        acts = [*self._turns, *self._summaries]
        spent = {name: sum(act.get(name, 0.0) for act in acts) for name in ("policy", "tools")}
        total = sum(spent.values()) if self._begun is None else max(0.0, now - self._begun)
        first = self._turns[0] if self._turns else {}
        latency: dict[str, float | int | None] = {
            "turns": len(self._turns),
            "total_seconds": round(total, 3),
            "policy_seconds": round(spent["policy"], 3),
            "tool_seconds": round(spent["tools"], 3),
            "first_turn_seconds": round(first["policy"], 3) if "policy" in first else None,
            "first_piece_seconds": round(first["first_piece"], 3) if "first_piece" in first else None,
        }
        self._begun, self._stopped, self._turns, self._summaries = None, now, [], []
        return latency
