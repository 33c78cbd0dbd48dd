"""Makes prepared boxes (boxes without a root file system) in parallel and ahead of need, and hands them out in the
order of requests.

The number of boxes made ahead grows with the number of waiting requests, since a burst of requests (such as a fork into
32 boxes) is likely to be repeated. It shrinks while boxes are left over.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict, deque
from collections.abc import Callable

from etude.sandbox.inside import kernel
from etude.sandbox.inside.box_ids import IdPool
from etude.sandbox.inside.prepared_box import STANDING, UNMAPPED, Kind, PreparedBox
from etude.sandbox.inside.zygote_root import ZygoteSettings

Watch = Callable[[int, Callable[[], None]], None]
Then = Callable[[PreparedBox | kernel.StepFailed], None]
SINGLE_IDS = (1000, 0)
"""User ids of boxes with a single id: the agent's, or root's if the image has its own root file system."""
_MIN_SPARE, _MAX_SPARE = 2, 32
"""Minimum and maximum number of prepared boxes kept ready, all of the kind (user id and process limit) of the last
request."""
_MAX_KINDS = 4
"""Maximum number of kinds for which prepared boxes are kept (a kind is what a box is made for: user id and process
limit). Beyond it, the boxes of the kind that was requested longest ago are ended."""
_MAX_PARALLEL = 8
"""Boxes prepared at the same time. More would only wait for each other in the kernel."""
_MAX_REPORT = 1 << 12


class BoxSpawner:
    def __init__(
        self,
        settings: ZygoteSettings,
        programs: dict[int, bytes],
        pool: IdPool,
        watch: Watch,
        unwatch: Callable[[int], None],
    ) -> None:
        """Create the spawner only when the zygote's root is complete, because boxes do not see later mounts. `programs`
        maps each of SINGLE_IDS to a seccomp program. `watch` registers a callback for a readable descriptor."""
        self._settings, self._programs, self._pool = settings, programs, pool
        self._watch, self._unwatch = watch, unwatch
        self._template_namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        kernel.unshare(kernel.CLONE_NEWNS, "mount namespace")
        self.own_namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        self._kind: Kind | None = None
        self._requests: defaultdict[Kind, deque[Then]] = defaultdict(deque)
        self._ready: defaultdict[Kind, deque[PreparedBox]] = defaultdict(deque)
        """Prepared boxes that wait for a request, by their kind. The kind that was requested last is at the end of the
        dict."""
        self._starting: defaultdict[Kind, list[PreparedBox]] = defaultdict(list)
        self._make_ahead = True
        self._spare = self._fewest_left = _MIN_SPARE

    def request(self, kind: Kind, then: Then) -> None:
        """Call `then` with a prepared box as soon as there is one (perhaps at once), or with the reason why none can be
        made."""
        self._make_ahead = True
        if kind != self._kind:
            self._change_kind(kind)
        if ready := self._ready[kind]:
            box = ready.popleft()
            self._fewest_left = min(self._fewest_left, len(ready))
            then(box)
            return
        self._requests[kind].append(then)
        self._fewest_left = 0
        self._spare = max(self._spare, min(_MAX_SPARE, len(self._requests[kind]) + _MIN_SPARE))
        self._make_requested(kind)

    def _change_kind(self, kind: Kind) -> None:
        self._kind = kind
        self._ready[kind] = self._ready.pop(kind, deque())
        while len(self._ready) > _MAX_KINDS:
            for box in self._ready.pop(next(iter(self._ready))):
                box.kill()

    @property
    def needs_spare(self) -> bool:
        if self._kind is None:
            return False
        starting = len(self._starting[self._kind])
        return self._make_ahead and starting < _MAX_PARALLEL and len(self._ready[self._kind]) + starting < self._spare

    def make_spare(self) -> None:
        assert self._kind is not None
        self._make(self._kind)

    def _make_requested(self, kind: Kind) -> None:
        while len(self._starting[kind]) < min(len(self._requests[kind]), _MAX_PARALLEL):
            self._make(kind)

    def _make(self, kind: Kind) -> None:
        ids = None
        try:
            ids = self._pool.take()
            box = PreparedBox(
                self._settings, kind, ids, self._template_namespace, self.own_namespace, self._programs[kind[0]]
            )
        except (OSError, kernel.StepFailed) as error:
            if ids is not None:
                self._pool.give_back(ids)
            number = error.number if isinstance(error, kernel.StepFailed) else error.errno
            self._report_failure(kind, kernel.StepFailed(getattr(error, "step", "namespaces"), number or 0))
            return
        self._starting[kind].append(box)
        self._watch(box.control.fileno(), lambda: self._receive_report(box))
        self._watch(box.pidfd, lambda: self._reap(box))

    def _receive_report(self, box: PreparedBox) -> None:
        report = box.control.recv(_MAX_REPORT)
        if report == UNMAPPED:
            try:
                box.map_ids()
            except OSError as error:
                self._fail(box, "id map", error.errno or 0)
        elif report == STANDING:
            self._unwatch(box.control.fileno())
            self._starting[box.kind].remove(box)
            if self._requests[box.kind]:
                self._requests[box.kind].popleft()(box)
                self._make_requested(box.kind)
            elif box.kind not in self._ready:  # Its kind has been given up meanwhile.
                box.kill()
            else:
                self._ready[box.kind].append(box)
                if self._kind is not None and len(self._ready[self._kind]) >= self._spare:
                    # All spares are ready again. Drop half of those that have not been needed since the last time.
                    self._spare = max(_MIN_SPARE, self._spare - self._fewest_left // 2)
                    self._fewest_left = self._spare
        else:
            self._fail(box, **json.loads(report or b'{"step": "lost", "number": 0}'))

    def _fail(self, box: PreparedBox, step: str, number: int) -> None:
        box.failure = kernel.StepFailed(step, number)
        self._unwatch(box.control.fileno())
        box.kill()

    def _reap(self, box: PreparedBox) -> None:
        """Clean up after a box's process has ended, whether the box was still being prepared or was in use."""
        for number in (box.control.fileno(), box.pidfd):
            self._unwatch(number)
        box.close()
        self._pool.give_back(box.ids)
        if box.at_end is not None:
            box.at_end()
        elif box in self._ready.get(box.kind, ()):
            self._ready[box.kind].remove(box)
        elif box in self._starting[box.kind]:
            self._starting[box.kind].remove(box)
            self._report_failure(box.kind, box.failure)

    def _report_failure(self, kind: Kind, why: kernel.StepFailed) -> None:
        """Give one waiting request the reason, and prepare no spare boxes until the next request."""
        self._make_ahead = False
        if self._requests[kind]:
            self._requests[kind].popleft()(why)
            self._make_requested(kind)
