"""The grader's classes of attacks: every cheat in one environment of each kind that it fits.

Cheats run one at a time, so that what each costs this process can be measured beside an honest attempt."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tests.tasks.cheats.environments import micro_environments

from etude.sandbox import Feature, Sandboxes
from etude.sandbox.attacks import AttackClass, Outcome
from etude.sandbox.attacks.classes import lacking
from etude.tasks import Grader, Judgement, Task, reference_diff
from etude.tasks.cheats import CHEATS, Attempt, Cheat, attempt, fitting, runner_of
from etude.tasks.cheats.cheat import ANY, MUTATION, UNITTEST, Scene

_NEEDS = (Feature.ISOLATED,)
VERDICTS = AttackClass(
    "forged verdicts",
    "No change that solves nothing passes. What lies in the box, or follows from it by one small step, is no secret: "
    "a verdict is `sealed` only if the rest is guessed at most once in 100 gradings.",
    _NEEDS,
)
LANGUAGE = AttackClass(
    "test language",
    "Tests that an agent writes reach only the values that they test: of `TestCase`, what gives no result and tells no "
    "source line.",
    _NEEDS,
)
ERRORS = AttackClass(
    "error for fail",
    "What fails on a path or byte of the agent's is a verdict about the agent. A grading is an `error` only if the "
    "reference, graded then, ends in one too.",
    _NEEDS,
)
MEMORY = AttackClass(
    "grader's memory",
    "An agent costs the grader under 64 MiB beyond an honest one: sizes are checked first.",
    _NEEDS,
)
SECONDS = AttackClass(
    "grader's time",
    "An agent costs the grader under 2 s of CPU beyond an honest one: every parser takes linear time.",
    _NEEDS,
)
CLASSES = (VERDICTS, LANGUAGE, ERRORS, MEMORY, SECONDS)
_MOST_KIB, _MOST_SECONDS = 64 << 10, 2.0


class Cost:
    """CPU seconds and growth of the largest memory of this process, since it was made."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # Resets the peak.
        self._kib, self._seconds = _peak_kib(), time.process_time()

    def seconds(self) -> float:
        return time.process_time() - self._seconds

    def kib(self) -> int:
        return _peak_kib() - self._kib


def _peak_kib() -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    raise RuntimeError("/proc/self/status has no VmHWM")


def one_of_each(folder: Path) -> list[Task]:
    """One environment for each runner."""
    found: dict[str, Task] = {}
    for micro in micro_environments():
        task = micro.write(folder)
        found.setdefault(runner_of(task), task)
    return list(found.values())


async def _honest(task: Task, grader: Grader) -> Attempt:
    async def act(scene: Scene) -> str:
        return reference_diff(task)

    return await attempt(Cheat("honest", "", frozenset(ANY), act), task, grader)


async def try_all(sandboxes: Sandboxes, folder: Path, tell: Callable[[Outcome], None], *, one: bool = False) -> None:
    """Call `tell` with each outcome. `one`: only in the first environment of unittest."""
    if lacks := lacking(_NEEDS, sandboxes.features):
        for each in CLASSES:
            tell(Outcome("cheats", each.name, lacks=tuple(need.value for need in lacks)))
        return
    grader = Grader(sandboxes)
    for task in one_of_each(folder):
        if one and runner_of(task) != UNITTEST:
            continue
        await _honest(task, grader)  # The first one makes the image.
        cost = Cost()
        honest = await _honest(task, grader)
        seconds, kib = cost.seconds(), cost.kib()
        if not honest.succeeded:
            why = f"the honest solution of {task.id} is no pass here: {honest.verdict.reason}"
            tell(Outcome(task.id, VERDICTS.name, undecided=why))
            continue
        for cheat, _ in fitting(CHEATS.values(), [task]):
            cost = Cost()
            made = await attempt(cheat, task, grader)
            for outcome in _judged(made, task, cost.seconds() - seconds, cost.kib() - kib):
                tell(outcome)


def _judged(made: Attempt, task: Task, seconds: float, kib: int) -> list[Outcome]:
    name, verdict = f"{made.cheat} in {task.id}", made.verdict
    checks = {
        (LANGUAGE if runner_of(task) == MUTATION else VERDICTS): made.succeeded and f"passed: {verdict.reason}",
        ERRORS: verdict.judgement is Judgement.ERROR and f"error: {verdict.reason}",
        MEMORY: kib > _MOST_KIB and f"{kib >> 10} MiB more than an honest one",
        SECONDS: seconds > _MOST_SECONDS and f"{seconds:.1f} s more than an honest one",
    }
    return [Outcome(name, of.name, 1, (f"{name}: {why}",) if why else ()) for of, why in checks.items()]
