"""Measures times that are logged in a session's signals: latencies, and the time between an answer and the next
request.

A signal is an observation of how the user reacts. Invariant: signals contain observations only. They do not judge
whether a follow-up corrects the agent, or why the user interrupted it.
"""

from __future__ import annotations

from collections.abc import Mapping


class Clock:
    """Keeps the start and end times of a session's runs. Callers pass the current Unix time."""

    def __init__(self) -> None:
        self._begun: float | None = None
        self._stopped: float | None = None
        self._turns: list[Mapping[str, float]] = []
        self._summaries: list[Mapping[str, float]] = []

    def was_stopped(self, when: float | None) -> None:
        """Set the end time of a resumed session's last run; None if unknown, because that run was killed."""
        self._stopped = when

    def asked(self, now: float) -> float | None:
        """Note the start of a request. Return the seconds since the end of the last run, if that is known."""
        after = None if self._stopped is None else round(max(0.0, now - self._stopped), 3)
        self._begun, self._turns, self._summaries = now, [], []
        return after

    def turned(self, seconds: Mapping[str, float]) -> None:
        self._turns.append(seconds)

    def summarised(self, seconds: Mapping[str, float]) -> None:
        self._summaries.append(seconds)

    def stopped(self, now: float) -> dict[str, float | int | None]:
        """Note the end of a run, and return its latencies. For a resumed run, whose start is unknown, `total_seconds`
        is the sum over its turns and self-summaries."""
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
