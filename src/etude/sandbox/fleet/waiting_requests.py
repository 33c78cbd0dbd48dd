"""Queues of the requests to which no host has been assigned yet. The queues are served in turns.

A queue holds one owner's requests in the order in which they came. Requests that are pinned to a certain host form
separate queues. So an owner with ten thousand requests does not starve one with a single request, and a fork that waits
for its host delays no other request.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from etude.sandbox.fleet.events import CreateRequested

QueueKey = tuple[str, str]
"""Key of a queue of waiting requests: (their owner, the host that they are pinned to). The host is empty for requests
that any host can take."""


@dataclass(slots=True)
class Pending:
    """A request that is not answered yet, or whose boxes are still being made."""

    wanted: CreateRequested
    since: float
    attempt: int = 0
    """Number of hosts on which the request has been placed so far."""
    tried: frozenset[str] = frozenset()
    """Hosts on which the request has failed."""
    host: str = ""
    """The host where the request's boxes are being made; empty while the request waits."""
    searched: bool = False
    """Whether all hosts have been searched for one with room for the request. From then on, only hosts that gain room
    are tried."""
    claim: str = ""
    """The host that is kept free for this request; empty if there is none."""
    answered: bool = False
    """Whether the request is rejected although a host still makes its boxes, which are destroyed when made."""

    @property
    def queue(self) -> QueueKey:
        return self.wanted.owner, self.wanted.pinned


class WaitingRequests:
    def __init__(self) -> None:
        self._queues: dict[QueueKey, deque[Pending]] = {}  # The queue whose turn is next comes first.
        self._fresh: dict[QueueKey, None] = {}  # Queues whose first request has not been tried on all hosts.
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def has_fresh(self) -> bool:
        """Whether there is a queue whose first request has not been tried on all hosts yet."""
        return bool(self._fresh)

    def add(self, pending: Pending, *, first: bool = False) -> None:
        """Add a request to the end of its queue, or (`first`) to the front, if it has lost its host."""
        requests = self._queues.setdefault(pending.queue, deque())
        if first and requests:
            requests[0].searched = False  # While it is second, it is not tried on hosts that gain room.
        (requests.appendleft if first else requests.append)(pending)
        self._count += 1
        self._note_head(pending.queue)

    def turns(self, *, everyone: bool) -> list[QueueKey]:
        """Return queues in the order of their turns: all (`everyone`), or only those whose first request has not been
        tried on all hosts."""
        if everyone:
            return list(self._queues)
        return list(self._fresh) if len(self._fresh) == 1 else [queue for queue in self._queues if queue in self._fresh]

    def head(self, queue: QueueKey) -> Pending:
        return self._queues[queue][0]

    def mark_searched(self, pending: Pending) -> None:
        pending.searched = True
        self._note_head(pending.queue)

    def search_again(self, pending: Pending) -> None:
        pending.searched = False
        self._note_head(pending.queue)

    def take(self, queue: QueueKey) -> Pending:
        """Remove and return the queue's first request. The queue's next turn comes after those of all others."""
        requests = self._queues.pop(queue)
        pending = requests.popleft()
        self._count -= 1
        if requests:
            self._queues[queue] = requests
        self._note_head(queue)
        return pending

    def remove(self, pending: Pending) -> None:
        requests = self._queues[pending.queue]
        requests.remove(pending)
        self._count -= 1
        if not requests:
            del self._queues[pending.queue]
        self._note_head(pending.queue)

    def _note_head(self, queue: QueueKey) -> None:
        """Update whether this queue is in `_fresh`, the queues whose first request has not been tried on all hosts."""
        requests = self._queues.get(queue)
        if requests and not requests[0].searched:
            self._fresh[queue] = None
        else:
            self._fresh.pop(queue, None)
