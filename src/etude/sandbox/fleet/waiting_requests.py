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
    """Whether all hosts have been tried for this request and none had room. From then on, it is tried only on hosts
    that gain room."""
    claim: str = ""
    """The host that is kept free for this request; empty if there is none."""
    answered: bool = False
    """Whether the request has been rejected already, although a host is still making its boxes. They are destroyed when
    they are made."""

    @property
    def queue(self) -> QueueKey:
        return self.wanted.owner, self.wanted.pinned


class WaitingRequests:
    """All waiting requests, in one queue per owner and pinned host. The queues are served in turns."""

    def __init__(self) -> None:
        self._queues: dict[QueueKey, deque[Pending]] = {}  # The queue whose turn is next comes first.
        self._fresh: dict[QueueKey, None] = {}  # Queues whose first request has not been searched for yet.
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def has_fresh(self) -> bool:
        """Whether there is a queue whose first request has not been tried on all hosts yet."""
        return bool(self._fresh)

    def add(self, pending: Pending, *, first: bool = False) -> None:
        """Add a request to the end of its queue. With `first`, add it at the front, for a request that has lost its
        host through no fault of its own."""
        requests = self._queues.setdefault(pending.queue, deque())
        if first and requests:
            requests[0].searched = False  # While it is second, it is not tried on hosts that gain room.
        (requests.appendleft if first else requests.append)(pending)
        self._count += 1
        self._note_head(pending.queue)

    def turns(self, *, everyone: bool) -> list[QueueKey]:
        """Return the keys of queues, in the order of their turns. With `everyone`, return the keys of all queues;
        otherwise, only of those whose first request has not been tried on all hosts yet."""
        if everyone:
            return list(self._queues)
        return list(self._fresh) if len(self._fresh) == 1 else [queue for queue in self._queues if queue in self._fresh]

    def head(self, queue: QueueKey) -> Pending:
        """Return the queue's first request."""
        return self._queues[queue][0]

    def mark_searched(self, pending: Pending) -> None:
        """Record that all hosts have been tried for the request and none had room."""
        pending.searched = True
        self._note_head(pending.queue)

    def search_again(self, pending: Pending) -> None:
        """Record that all hosts must be searched for the request again."""
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
        """Remove a request from its queue, whatever its position."""
        requests = self._queues[pending.queue]
        requests.remove(pending)
        self._count -= 1
        if not requests:
            del self._queues[pending.queue]
        self._note_head(pending.queue)

    def _note_head(self, queue: QueueKey) -> None:
        """Update `_fresh`, the set of queues whose first request has not been tried on all hosts yet, after `queue` has
        changed."""
        requests = self._queues.get(queue)
        if requests and not requests[0].searched:
            self._fresh[queue] = None
        else:
            self._fresh.pop(queue, None)
