"""Reads the current state of a background agent from its folder.

Invariant: the state is never stored. It is derived from the lock that the agent's process holds, the queue, the
session's log and `ended.json`, so neither a kill nor a reboot can leave a wrong state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from os import close
from pathlib import Path

from etude.harness.background.applying import Changes, count_lines
from etude.harness.background.locks import is_held, take_lock
from etude.harness.background.queue import LOCK, Queue
from etude.harness.background.request import Ended, Order, agent_folders, is_agent, read_ended, read_order
from etude.harness.sessions import SavedSession, SessionError, load_session
from etude.harness.sessions.record import LOG
from etude.harness.workspaces.workspace import TOO_LARGE
from etude.trace import StopCause
from etude.trace.conversation.messages import Role


class AgentState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    """The agent finished, or a budget ended it."""
    STOPPED = "stopped"
    FAILED = "failed"
    """A failure of the endpoint, a box or the disk ended the agent."""
    INTERRUPTED = "interrupted"
    """The agent's process ended without recording why, for example because it was killed."""
    APPLIED = "applied"
    PARTLY = "partly applied"
    REJECTED = "rejected"

    @property
    def lives(self) -> bool:
        return self in (AgentState.QUEUED, AgentState.RUNNING)


_OF_STOP = {
    StopCause.CANCELLED: AgentState.STOPPED,
    StopCause.ERROR: AgentState.FAILED,
    StopCause.WALL_CLOCK: AgentState.FAILED,
    "": AgentState.INTERRUPTED,
}
_REVIEWED = {"accepted": AgentState.APPLIED, "rejected": AgentState.REJECTED}


@dataclass(frozen=True, slots=True)
class Change:
    """Size, in files and lines, of an agent's unapplied changes; if it has none, of its applied changes."""

    files: int
    added: int
    removed: int


@dataclass(frozen=True, slots=True)
class Agent:
    """Snapshot of a background agent, as `read_agent` read it from its folder."""

    place: Path
    order: Order
    state: AgentState
    ahead: int
    """Number of agents before this one in the queue, running ones included."""
    ended: Ended
    """How the agent ended; all fields are empty while it is queued or running."""
    session: SavedSession | None

    @property
    def changes(self) -> Changes:
        """The agent's changes that are neither applied nor reverted, without files that are too large to read."""
        return _open_changes(self.session) if self.session is not None else {}

    @property
    def left_out(self) -> list[str]:
        """Paths of changed files that `changes` omits because they became too large to read."""
        changed = self.session.changed() if self.session is not None else {}
        return sorted(changed.keys() - self.changes.keys())

    @property
    def pending(self) -> tuple[str, ...]:
        return self.order.prompts[self.session.requests if self.session else 0 :]

    @property
    def unfinished(self) -> bool:
        """Whether the agent can be resumed without a new prompt."""
        return bool(self.pending) or self.state in (AgentState.STOPPED, AgentState.FAILED, AgentState.INTERRUPTED)

    def change(self) -> Change:
        """Count the files and lines of `changes` or, if there are none, of the applied changes."""
        counted = [count_lines(*pair) for pair in self.changes.values()]
        if counted or self.session is None:
            return Change(len(counted), sum(added for added, _ in counted), sum(removed for _, removed in counted))
        kept = [signal for signal in self.session.signals if signal["what"] == "edits_accepted"]
        paths = {path for signal in kept for path in signal["files"]}
        return Change(len(paths), *(sum(signal.get(what, 0) for signal in kept) for what in ("added", "removed")))


def read_agent(place: Path, *, lock_held: bool = False) -> Agent:
    """Read an agent's state from its folder. Pass `lock_held=True` if the caller itself holds the agent's lock: a held
    lock then does not mean that the agent runs."""
    order = read_order(place)
    lives = not lock_held and is_held(place / LOCK)
    session = load_session(place) if has_begun(place) else None
    waiting = len(order.prompts) > (session.requests if session else 0)
    ended = None if lives else (read_ended(place) or _end_of(None if waiting else session))
    ahead = Queue(place.parent).before(place.name) if lives else 0
    if ended is None:
        state = AgentState.QUEUED if ahead >= order.at_once else AgentState.RUNNING
    else:
        state = _OF_STOP.get(ended.stop, AgentState.DONE)
        if session is not None and session.reviewed and not waiting:
            state = _REVIEWED[session.reviewed]
            if state is AgentState.APPLIED and _open_changes(session):
                state = AgentState.PARTLY
    return Agent(place, order, state, ahead, ended or Ended(stop=""), session)


def read_all_agents(sessions: Path) -> tuple[list[Agent], list[str]]:
    """Return all agents, newest first, and an error message for each agent that cannot be read."""
    found, problems = [], []
    for place in agent_folders(sessions):
        try:
            found.append(read_agent(place))
        except SessionError as error:
            # Another process may just have removed the agent, which is no problem.
            if is_agent(place):
                problems.append(str(error))
    return sorted(found, key=lambda agent: agent.order.begun, reverse=True), problems


@contextmanager
def lock_agent(place: Path, doing: str) -> Iterator[None]:
    """Context manager that holds the agent's lock, so that the agent's process cannot be started. Raises SessionError
    like `take_agent_lock`."""
    descriptor = take_agent_lock(place, doing)
    try:
        yield
    finally:
        close(descriptor)


def take_agent_lock(place: Path, doing: str) -> int:
    """Take the agent's lock and return a descriptor that holds it until closed. Raises SessionError if the lock is
    already held; `doing` is the verb in its message, such as "apply"."""
    descriptor = take_lock(place / LOCK)
    if descriptor is None:
        raise SessionError(f"{read_order(place).id} is at work: `etude agents stop` it before you {doing} it")
    return descriptor


def has_begun(place: Path) -> bool:
    log = place / LOG
    if not log.exists():
        return False
    with log.open("rb") as file:
        return file.readline().endswith(b"\n")


def _open_changes(session: SavedSession) -> Changes:
    return {path: pair for path, pair in session.changed().items() if pair[1] != TOO_LARGE}


def _end_of(session: SavedSession | None) -> Ended:
    if session is None:
        return Ended(stop="")
    return Ended(stop=session.stop, text=last_message(session))


def last_message(session: SavedSession) -> str:
    """Return the agent's last message to the user: the output of its finish call, or else the text of its last turn."""
    if session.stop == StopCause.FINISHED and session.tools and session.tools[-1].output:
        return session.tools[-1].output
    messages = session.conversation.messages if session.conversation else []
    return next((message.text for message in reversed(messages) if message.role is Role.ASSISTANT), "")
