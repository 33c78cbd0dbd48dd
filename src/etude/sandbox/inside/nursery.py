"""Makes shells (boxes without an image yet) in parallel and ahead of need, and hands them out in the order of requests.

The number made ahead follows the recent shortfall: whoever forks a box into 32 will do so again.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict, deque
from collections.abc import Callable

from etude.sandbox.inside import kernel
from etude.sandbox.inside.shell import STANDING, UNMAPPED, Shell
from etude.sandbox.inside.zygote_root import World

Watch = Callable[[int, Callable[[], None]], None]
Then = Callable[[Shell | kernel.StepFailed], None]
KINDS = (1000, 0)
"""The single id of boxes that have only one: the agent's, or that of an image's root."""
_FEWEST_SPARE, _MOST_SPARE = 2, 32
"""Bounds on the shells kept ready of the kind that was last asked for."""
_AT_ONCE = 8
"""Number of shells made at the same time; more would only wait for each other."""
_MESSAGE = 1 << 12


class Nursery:
    def __init__(self, world: World, programs: dict[int, bytes], watch: Watch, unwatch: Callable[[int], None]) -> None:
        """Only once the world is finished: boxes do not see later mounts. `programs`: each kind's seccomp filters."""
        self._world, self._programs, self._watch, self._unwatch = world, programs, watch, unwatch
        self._clean = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        kernel.unshare(kernel.CLONE_NEWNS, "mount namespace")
        self.home = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        self._kind = KINDS[0]
        self._wanted: defaultdict[int, deque[Then]] = defaultdict(deque)
        self._standing: defaultdict[int, deque[Shell]] = defaultdict(deque)
        self._coming: defaultdict[int, list[Shell]] = defaultdict(list)
        self._ahead = True
        self._spare = self._fewest_left = _FEWEST_SPARE

    def ask(self, kind: int, then: Then) -> None:
        """Calls `then` with a shell, perhaps at once, or with the reason why there is none."""
        self._kind, self._ahead = kind, True
        if standing := self._standing[kind]:
            shell = standing.popleft()
            self._fewest_left = min(self._fewest_left, len(standing))
            then(shell)
            return
        self._wanted[kind].append(then)
        self._fewest_left = 0
        self._spare = max(self._spare, min(_MOST_SPARE, len(self._wanted[kind]) + _FEWEST_SPARE))
        self._make_wanted(kind)

    @property
    def short(self) -> bool:
        coming = len(self._coming[self._kind])
        return self._ahead and coming < _AT_ONCE and len(self._standing[self._kind]) + coming < self._spare

    def make_one(self) -> None:
        self._make(self._kind)

    def _make_wanted(self, kind: int) -> None:
        while len(self._coming[kind]) < min(len(self._wanted[kind]), _AT_ONCE):
            self._make(kind)

    def _make(self, kind: int) -> None:
        try:
            shell = Shell(self._world, kind, self._clean, self.home, self._programs[kind])
        except (OSError, kernel.StepFailed) as error:
            number = error.number if isinstance(error, kernel.StepFailed) else error.errno
            self._blame(kind, kernel.StepFailed(getattr(error, "step", "namespaces"), number or 0))
            return
        self._coming[kind].append(shell)
        self._watch(shell.line.fileno(), lambda: self._hear(shell))
        self._watch(shell.pidfd, lambda: self._bury(shell))

    def _hear(self, shell: Shell) -> None:
        said = shell.line.recv(_MESSAGE)
        if said == UNMAPPED:
            try:
                shell.map_ids()
            except OSError as error:
                self._give_up(shell, "id map", error.errno or 0)
        elif said == STANDING:
            self._unwatch(shell.line.fileno())
            self._coming[shell.kind].remove(shell)
            if self._wanted[shell.kind]:
                self._wanted[shell.kind].popleft()(shell)
                self._make_wanted(shell.kind)
            else:
                self._standing[shell.kind].append(shell)
                if len(self._standing[self._kind]) >= self._spare:
                    # All spares are ready again: half of those that nobody has needed since the last time are too many.
                    self._spare = max(_FEWEST_SPARE, self._spare - self._fewest_left // 2)
                    self._fewest_left = self._spare
        else:
            self._give_up(shell, **json.loads(said or b'{"step": "lost", "number": 0}'))

    def _give_up(self, shell: Shell, step: str, number: int) -> None:
        shell.failure = kernel.StepFailed(step, number)
        self._unwatch(shell.line.fileno())
        shell.kill()

    def _bury(self, shell: Shell) -> None:
        """Cleans up when a shell ends, whether or not it became a box."""
        for number in (shell.line.fileno(), shell.pidfd):
            self._unwatch(number)
        shell.close()
        if shell.at_end is not None:
            shell.at_end()
        elif shell in self._standing[shell.kind]:
            self._standing[shell.kind].remove(shell)
        elif shell in self._coming[shell.kind]:
            self._coming[shell.kind].remove(shell)
            self._blame(shell.kind, shell.failure)

    def _blame(self, kind: int, why: kernel.StepFailed) -> None:
        """Reports a failure to one waiting request. Nothing more is made ahead until the next request."""
        self._ahead = False
        if self._wanted[kind]:
            self._wanted[kind].popleft()(why)
            self._make_wanted(kind)
