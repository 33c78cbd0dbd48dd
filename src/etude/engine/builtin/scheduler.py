"""The scheduler assigns requests to cache rows and chooses the prefixes they reuse. It is a pure state machine, without
torch, clocks or threads.

Invariants (property-tested over any order of arrivals, ends, aborts and swaps):
- a row serves one request at a time; at most `slots` requests run;
- if slots are free, waiting requests begin in order of arrival: at least the first one, and as many others as slots and
  `TOKENS_AT_ONCE` allow. Only a request whose prefix another request is about to compute waits one step longer, and
  then reuses that prefix;
- a request that begins after a weight swap (`swapped`) reuses only rows that the policy `cache_at_swap` allows: under
  "reset" no row that older weights wrote to, under "salt" only rows of conversations that began with the same version
  as its own, under "keep" any row.

There are `slots + cache_slots` rows. The row of a finished request stays cached; if more than `cache_slots` rows are
cached, the least recently used one is dropped. So a row is free whenever a request may begin.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from etude.engine.builtin.lockstep import Rounds
from etude.engine.builtin.prefix import Match, PrefixTable
from etude.engine.namespaces import CacheAtSwap, Namespaces
from etude.engine.protocol import EngineError, GenerateRequest, IntArray

WORTH_A_STEP = 16
"""A request waits one step for a prefix that another request is about to compute if this prefix saves it at least so
many tokens more than the best prefix in the cache."""
TOKENS_AT_ONCE = 8192
"""Maximum number of prompt tokens prefilled per step, but at least one prompt. More would delay decoding rows."""


@dataclass(frozen=True, slots=True)
class Admission:
    """A request that begins in cache row `row`. It reuses the first `reused` positions of the cached row `source`."""

    request: GenerateRequest
    row: int
    source: int
    """Row from which the first `reused` positions are copied; `row` itself if nothing has to be copied."""
    reused: int
    oldest: int = -1
    """Oldest version that computed one of these positions; -1 if none is reused."""


class Aborted(StrEnum):
    """The state in which `abort` found a request."""

    UNKNOWN = "unknown"
    """The request does not exist or has ended."""
    REMOVED = "removed"
    """The request was waiting and has been removed."""
    RUNNING = "running"
    """The request is running; the caller must call `finish`."""
    BOUND = "bound"
    """The request belongs to the current lockstep round and must run to its end, so that the batches do not change."""


@dataclass(slots=True)
class _Running:
    request: GenerateRequest
    row: int
    epoch: int
    """Number of weight swaps before the request began."""


class Scheduler:
    def __init__(
        self,
        *,
        slots: int,
        cache_slots: int,
        context: int,
        lookahead: int = 0,
        lockstep: bool = False,
        cache_at_swap: CacheAtSwap = "reset",
        version: int = 0,
    ) -> None:
        self._slots = slots
        self._cache_slots = cache_slots
        self.rows = slots + cache_slots
        self.prefixes = PrefixTable(self.rows, context, lookahead=lookahead)
        self._free = list(range(self.rows))
        self._running: dict[str, _Running] = {}
        self._cached: OrderedDict[int, str] = OrderedDict()  # row -> conversation, least recently used first
        self._row_of: dict[str, int] = {}  # conversation -> the cached row of its last request
        self._rounds = Rounds() if lockstep else None
        self._queue: deque[GenerateRequest] = self._rounds.queue if self._rounds else deque()
        self._epoch = 0
        self._version = version
        self._oldest: NDArray[np.int64] = np.full(self.rows, -1)
        """The version that computed each row's first position. Positions are computed in order, so no version in the
        row is older."""
        self._spaces = Namespaces(cache_at_swap)
        self._resets = cache_at_swap == "reset"

    @property
    def in_round(self) -> bool:
        return self._rounds is not None and bool(self._running or self._queue)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return self._rounds.waiting if self._rounds else len(self._queue)

    @property
    def busy(self) -> bool:
        """Whether requests run, or can begin without another call of `submit`, `close` or `open`."""
        return bool(self._running or self._queue or (self._rounds and self._rounds.complete))

    def submit(self, request: GenerateRequest) -> None:
        if self._rounds:
            self._rounds.put(request)
        else:
            self._queue.append(request)

    def open(self, conversations: list[str]) -> None:
        if self._rounds and self._rounds.open(conversations):
            # Rows cached in an earlier episode must not change the batches of this one.
            for row in list(self._cached):
                self._drop(row)

    def close(self, conversation: str) -> GenerateRequest | None:
        """Close a conversation: its cached row becomes the first to be evicted. In lockstep mode this holds from the
        next round on, and the conversation's waiting request, which will never run, is returned."""
        if self._rounds:
            return self._rounds.close(conversation)
        self._demote(conversation)
        self._spaces.forget(conversation)
        return None

    def abort(self, request_id: str) -> Aborted:
        """Remove a request that waits, but not a running one. Return the state in which it was found."""
        if self._rounds and self._rounds.remove(request_id):
            return Aborted.REMOVED
        queued = next((request for request in self._queue if request.id == request_id), None)
        if self._rounds:
            return Aborted.BOUND if queued or request_id in self._running else Aborted.UNKNOWN
        if queued:
            self._queue = deque(r for r in self._queue if r is not queued)
            return Aborted.REMOVED
        return Aborted.RUNNING if request_id in self._running else Aborted.UNKNOWN

    def admit(self) -> list[Admission]:
        """Assign rows to the requests that begin now. The caller copies the reused prefixes and prefills the rest."""
        if self._rounds and not self._running and not self._queue:
            for conversation in self._rounds.begin() or ():
                self._demote(conversation)
                self._spaces.forget(conversation)
        unsettled = np.zeros(self.rows, np.bool_)
        admissions: list[Admission] = []
        later: list[GenerateRequest] = []
        tokens = 0
        for _ in range(min(self._slots - len(self._running), len(self._queue))):
            request = self._queue[0]
            match = self._match(request, unsettled)
            if match.row >= 0 and unsettled[match.row]:
                later.append(self._queue.popleft())
                continue
            tokens += request.prompt.size - match.reused
            if admissions and tokens > TOKENS_AT_ONCE:
                break
            self._queue.popleft()
            admissions.append(self._admit_one(request, match))
            unsettled[admissions[-1].row] = True
        self._queue.extendleft(reversed(later))
        return admissions

    def finish(self, request_id: str, sampled: IntArray) -> None:
        """End a request and cache its row, unless weights were swapped while it ran and caches are reset then."""
        ended = self._running.pop(request_id)
        if self._resets and ended.epoch != self._epoch:
            self._release(ended.row)
            return
        self.prefixes.extend(ended.row, sampled)
        conversation = ended.request.conversation
        self._cached[ended.row] = conversation
        if conversation:
            self._row_of[conversation] = ended.row
        while len(self._cached) > self._cache_slots:
            self._drop(next(iter(self._cached)))

    def discard(self, request_id: str) -> None:
        """End a running request whose row must not be reused."""
        self._release(self._running.pop(request_id).row)

    def swapped(self, version: int) -> None:
        """Weights of this version are used from now on. If caches are reset then, requests that begin from now on reuse
        nothing that older weights computed."""
        self._epoch += 1
        self._version = version
        if not self._resets:
            return
        for row in list(self._cached):
            self._drop(row)
        for running in self._running.values():
            self.prefixes.forget(running.row)

    def running_row(self, request_id: str) -> int | None:
        running = self._running.get(request_id)
        return None if running is None else running.row

    def row(self, request_id: str) -> int:
        if request_id not in self._running:
            raise EngineError(f"request {request_id} is not running")
        return self._running[request_id].row

    def _match(self, request: GenerateRequest, unsettled: NDArray[np.bool_]) -> Match:
        own, space = self._row_of.get(request.conversation), self._spaces.of(request.conversation, self._version)
        return self.prefixes.longest(
            request.prompt, unsettled=unsettled, worth=WORTH_A_STEP, preferred=own, space=space
        )

    def _admit_one(self, request: GenerateRequest, match: Match) -> Admission:
        """Begin a request in its conversation's cached row, if the prompt continues that row, else in a free row."""
        own = self._row_of.pop(request.conversation, None)
        source = match.row
        if own is not None and own == source and match.common > self.prefixes.filled(own):
            # The conversation continues in its cached row, without a copy.
            row = own
            del self._cached[own]
        else:
            row = heapq.heappop(self._free)
            if source in self._cached:
                self._cached.move_to_end(source)
        if match.reused == 0:
            source = row
        oldest = int(self._oldest[source]) if match.reused else -1
        self._oldest[row] = oldest if match.reused else self._version
        self._running[request.id] = _Running(request, row, self._epoch)
        self.prefixes.begin(row, request.prompt, self._spaces.of(request.conversation, self._version))
        return Admission(request, row, source, match.reused, oldest)

    def _demote(self, conversation: str) -> None:
        """Make the conversation's cached row the first to be dropped."""
        row = self._row_of.pop(conversation, None)
        if row is not None and row in self._cached:
            self._cached.move_to_end(row, last=False)

    def _drop(self, row: int) -> None:
        conversation = self._cached.pop(row)
        if self._row_of.get(conversation) == row:
            del self._row_of[conversation]
        self._release(row)

    def _release(self, row: int) -> None:
        self.prefixes.forget(row)
        heapq.heappush(self._free, row)
