"""Who may run and who waits, without a daemon: tickets in a folder, drawn in order.

Invariant: of the living tickets, in order, only the first `at_once` run. A place before one's own is lost by nobody and
gained by nobody, so who may run once may run until its end. A ticket lives as long as its agent holds its lock; those
of the dead count for nothing, and go when the next one is drawn.
"""

from __future__ import annotations

from pathlib import Path

from etude.harness.background.locks import alone, is_held

LOCK = "lock"
"""In an agent's folder: held by the process that is the agent."""
_DRAW_SECONDS = 30.0


class Queue:
    """Of the agents whose folders lie in `sessions`. Tickets are links, named by number, to the folders' names."""

    def __init__(self, sessions: Path) -> None:
        self._sessions = sessions
        self._folder = sessions / "queue"

    def draw(self, agent: str) -> None:
        """The last place, for an agent whose lock is held already."""
        with alone(self._folder / "drawing", seconds=_DRAW_SECONDS, whom="another agent that is being started"):
            last = 0
            for number, name in self._tickets():
                if name == agent or not self._lives(name):
                    self._place(number).unlink(missing_ok=True)
                last = number
            self._place(last + 1).symlink_to(agent)

    def before(self, agent: str) -> int:
        """How many living ones drew earlier."""
        found = 0
        for _, name in self._tickets():
            if name == agent:
                return found
            found += self._lives(name)
        return 0  # It has left, or never came.

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
                    continue  # It left while we looked.
        return sorted(found)

    def _lives(self, agent: str) -> bool:
        return is_held(self._sessions / agent / LOCK)

    def _place(self, number: int) -> Path:
        return self._folder / f"{number:08d}"
