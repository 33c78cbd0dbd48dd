"""A queue of background agents, stored as numbered tickets in a folder. It needs no daemon.

An agent is alive while its process holds the agent's lock. Invariant: an agent may run if fewer than `Order.at_once`
living agents have an earlier ticket than its own. The number of living agents with earlier tickets never grows, so an
agent that was allowed to run may run until it ends. Tickets of dead agents do not count; they are removed when the next
ticket is drawn.
"""

from __future__ import annotations

from pathlib import Path

from etude.harness.background.locks import is_held, wait_for_lock

LOCK = "lock"
"""Lock file in an agent's folder, held by the agent's process."""
_DRAW_SECONDS = 30.0


class Queue:
    """The queue of the agents whose folders are in `sessions`. A ticket is a symlink whose name is its number and whose
    target is the name of the agent's folder."""

    def __init__(self, sessions: Path) -> None:
        self._sessions = sessions
        self._folder = sessions / "queue"

    def draw(self, agent: str) -> None:
        """Append an agent to the queue. The caller must already hold the agent's lock."""
        with wait_for_lock(self._folder / "drawing", seconds=_DRAW_SECONDS, whom="another agent that is being started"):
            last = 0
            for number, name in self._tickets():
                if name == agent or not self._lives(name):
                    self._place(number).unlink(missing_ok=True)
                last = number
            self._place(last + 1).symlink_to(agent)

    def before(self, agent: str) -> int:
        """Return the number of living agents with an earlier ticket than this agent's; 0 if it is not in the queue."""
        found = 0
        for _, name in self._tickets():
            if name == agent:
                return found
            found += self._lives(name)
        return 0  # the agent has left the queue, or was never in it

    def leave(self, agent: str) -> None:
        for number, name in self._tickets():
            if name == agent:
                self._place(number).unlink(missing_ok=True)

    def _tickets(self) -> list[tuple[int, str]]:
        if not self._folder.is_dir():
            return []
        found = []
        for path in self._folder.iterdir():
            if path.name.isdigit():
                try:
                    found.append((int(path.name), str(path.readlink())))
                except FileNotFoundError:
                    continue  # another process removed the ticket just now
        return sorted(found)

    def _lives(self, agent: str) -> bool:
        return is_held(self._sessions / agent / LOCK)

    def _place(self, number: int) -> Path:
        return self._folder / f"{number:08d}"
