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
from etude.sandbox.inside.prepared_box import STANDING, UNMAPPED, PreparedBox
from etude.sandbox.inside.zygote_root import ZygoteSettings

Watch = Callable[[int, Callable[[], None]], None]
Then = Callable[[PreparedBox | kernel.StepFailed], None]
SINGLE_IDS = (1000, 0)
"""User ids of boxes with a single id: the agent's, or root's if the image has its own root file system."""
_MIN_SPARE, _MAX_SPARE = 2, 32
"""Number of prepared boxes kept ready, all for the `single_id` of the last request."""
_MAX_PARALLEL = 8
"""Boxes prepared at the same time. More would only wait for each other in the kernel."""
_MAX_REPORT = 1 << 12


class BoxSpawner:
    def __init__(
        self, settings: ZygoteSettings, programs: dict[int, bytes], watch: Watch, unwatch: Callable[[int], None]
    ) -> None:
        """Create the spawner only when the zygote's root is complete, because boxes do not see later mounts. `programs`
        maps each of SINGLE_IDS to a seccomp program. `watch` registers a callback for a readable descriptor."""
        self._settings, self._programs, self._watch, self._unwatch = settings, programs, watch, unwatch
        self._template_namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        kernel.unshare(kernel.CLONE_NEWNS, "mount namespace")
        self.own_namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        self._single_id = SINGLE_IDS[0]
        self._requests: defaultdict[int, deque[Then]] = defaultdict(deque)
        self._ready: defaultdict[int, deque[PreparedBox]] = defaultdict(deque)
        self._starting: defaultdict[int, list[PreparedBox]] = defaultdict(list)
        self._make_ahead = True
        self._spare = self._fewest_left = _MIN_SPARE

    def request(self, single_id: int, then: Then) -> None:
        """Call `then` with a prepared box as soon as there is one (perhaps at once), or with the reason why none can be
        made."""
        self._single_id, self._make_ahead = single_id, True
        if ready := self._ready[single_id]:
            box = ready.popleft()
            self._fewest_left = min(self._fewest_left, len(ready))
            then(box)
            return
        self._requests[single_id].append(then)
        self._fewest_left = 0
        self._spare = max(self._spare, min(_MAX_SPARE, len(self._requests[single_id]) + _MIN_SPARE))
        self._make_requested(single_id)

    @property
    def needs_spare(self) -> bool:
        starting = len(self._starting[self._single_id])
        return (
            self._make_ahead and starting < _MAX_PARALLEL and len(self._ready[self._single_id]) + starting < self._spare
        )

    def make_spare(self) -> None:
        self._make(self._single_id)

    def _make_requested(self, single_id: int) -> None:
        while len(self._starting[single_id]) < min(len(self._requests[single_id]), _MAX_PARALLEL):
            self._make(single_id)

    def _make(self, single_id: int) -> None:
        try:
            box = PreparedBox(
                self._settings, single_id, self._template_namespace, self.own_namespace, self._programs[single_id]
            )
        except (OSError, kernel.StepFailed) as error:
            number = error.number if isinstance(error, kernel.StepFailed) else error.errno
            self._report_failure(single_id, kernel.StepFailed(getattr(error, "step", "namespaces"), number or 0))
            return
        self._starting[single_id].append(box)
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
            self._starting[box.single_id].remove(box)
            if self._requests[box.single_id]:
                self._requests[box.single_id].popleft()(box)
                self._make_requested(box.single_id)
            else:
                self._ready[box.single_id].append(box)
                if len(self._ready[self._single_id]) >= self._spare:
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
        if box.at_end is not None:
            box.at_end()
        elif box in self._ready[box.single_id]:
            self._ready[box.single_id].remove(box)
        elif box in self._starting[box.single_id]:
            self._starting[box.single_id].remove(box)
            self._report_failure(box.single_id, box.failure)

    def _report_failure(self, single_id: int, why: kernel.StepFailed) -> None:
        """Give one waiting request the reason, and prepare no spare boxes until the next request."""
        self._make_ahead = False
        if self._requests[single_id]:
            self._requests[single_id].popleft()(why)
            self._make_requested(single_id)
