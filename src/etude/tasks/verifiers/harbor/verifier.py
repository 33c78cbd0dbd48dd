"""The verifier of Harbor tasks (`type = "harbor"`): a task's own tests/test.sh decides about a change.

In shared mode, test.sh and the code under test share a box, and any code there can write the reward. So the verdict is
marked as open. In separate mode, test.sh runs in a box of its own. The verdict is then sealed (safe against forgery) if
this box receives only data.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from etude.tasks.change import Change
from etude.tasks.directory import list_files
from etude.tasks.harbor import Harbor, Part, parse_harbor, parts_of
from etude.tasks.task import Task, TaskError
from etude.tasks.verdict import Evidence, Judgement, Verdict
from etude.tasks.verifiers.contract import GradingContext
from etude.tasks.verifiers.harbor.attempt import Attempt, PartSetup, attempt
from etude.tasks.verifiers.harbor.box_setup import variables

_DATA = frozenset(
    (".csv", ".json", ".jsonl", ".log", ".md", ".parquet", ".png", ".svg", ".tsv", ".txt", ".xml", ".yaml")
)
"""Artifacts with these suffixes count as data. test.sh might execute a folder or any other file."""


class HarborVerifier:
    def __init__(self, task: Task) -> None:
        path = task.directory / "task.toml"
        self.harbor = parse_harbor(task.config, path)
        require_runnable(self.harbor, path)
        self.pass_at = _pass_at(task)
        step = task.verifier.get("step")
        parts = [part for part in parts_of(self.harbor) if step in (None, part.name)]
        if not parts:
            raise TaskError(f"{path}: metadata.etude.verifier.step: expected a step's name, found {step!r}")
        self.setups = tuple(_setup_of(task, self.harbor, part) for part in parts)
        self._works_unchanged: dict[str, bool] = {}
        self._check_lock = asyncio.Lock()

    @property
    def sealed(self) -> bool:
        return all(setup.part.verifier.separate and _only_data(setup.part) for setup in self.setups)

    def protects(self, path: str) -> bool:
        """Return False: the tests come from outside, and a task does not say which files the agent may change."""
        return False

    async def examine(self, context: GradingContext) -> Verdict:
        results: list[Result] = []
        for setup in self.setups:
            found = await attempt(context, setup, context.change)
            needed = setup.part.min_reward or {"reward": self.pass_at}
            results.append(Result(setup.part.name, found, needed, await self._blame(context, setup, found)))
            if setup.part.min_reward and not results[-1].passed:
                break  # The following steps build on this one.
        return conclude(results, [setup.part.name for setup in self.setups], self.harbor.multi_step_reward_strategy)

    async def _blame(self, context: GradingContext, setup: PartSetup, found: Attempt) -> Judgement:
        """Return why `found` has no reward; PASS if it has one. FAIL: the agent's change is the cause, because test.sh
        used up a limit, or gives a reward on the unchanged workspace. ERROR: anything else, such as a host that gave
        test.sh no CPU time."""
        if found.reward is not None:
            return Judgement.PASS
        if found.limit:
            return Judgement.ERROR if found.starved else Judgement.FAIL
        async with self._check_lock:
            name = setup.part.name
            if name not in self._works_unchanged:
                untouched = found if not context.change.files else await attempt(context, setup, Change())
                if untouched.reward is None:
                    return Judgement.ERROR  # Not cached, because the fault may be temporary.
                self._works_unchanged[name] = True
        return Judgement.FAIL


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one part (one step, or the whole task), and the metrics that it needs to pass."""

    name: str
    attempt: Attempt
    needed: Mapping[str, float]
    """Smallest passing value of each required metric."""
    blame: Judgement
    """Cause of a missing reward: FAIL for the change, ERROR for the infrastructure; PASS if there is a reward."""

    @property
    def score(self) -> float:
        return self.attempt.reward["reward"] if self.attempt.reward else 0.0

    @property
    def passed(self) -> bool:
        reward = self.attempt.reward
        # A required metric that is missing counts as 0.
        return reward is not None and all(reward.get(key, 0.0) >= least for key, least in self.needed.items())


def conclude(results: Sequence[Result], names: Sequence[str], strategy: str) -> Verdict:
    """Return the verdict on a task, which passes if every part passes. The score is the last part's if `strategy` is
    "final", and otherwise the mean. `results` is shorter than `names` if a failed part kept the following ones from
    running."""
    passed = [result.name for result in results if result.passed]
    missing = len(names) - len(results)
    score = results[-1].score if strategy == "final" else sum(result.score for result in results) / len(names)
    if strategy == "final" and missing:
        score = 0.0
    last = results[-1].attempt
    evidence = Evidence(
        exit_code=last.code,
        tests_expected=len(names),
        tests_passed=len(passed),
        failed_tests=tuple(name or "test.sh" for name in names if name not in passed),
        seconds=sum(result.attempt.seconds for result in results),
        log=last.log[-4000:],
        score=score,
        timed_out=last.limit == "time",
        starved=last.starved,
    )
    unsure = next((result for result in results if result.blame is Judgement.ERROR), None)
    if unsure:
        where = f"step {unsure.name}: " if unsure.name else ""
        return Verdict(Judgement.ERROR, f"{where}there is no reward: {unsure.attempt.problem}", evidence)
    if len(names) > 1:
        scores = ", ".join(f"{result.name} {result.score:g}" for result in results)
        reason = f"{len(passed)} of {len(names)} steps passed ({scores})"
    elif last.reward is None:
        reason = f"there is no reward: {last.problem}"
    else:
        needed = "" if passed else f", {_needs(results[0].needed)} needed"
        reason = f"reward {results[-1].score:g}{needed}"
    return Verdict(Judgement.PASS if len(passed) == len(names) else Judgement.FAIL, reason, evidence)


def _needs(needed: Mapping[str, float]) -> str:
    return " and ".join(f"{least:g}" if key == "reward" else f"{key} {least:g}" for key, least in needed.items()) + (
        " is" if len(needed) == 1 else " are"
    )


def require_runnable(harbor: Harbor, path: Path) -> None:
    """Raise TaskError if a task has settings that are valid in Harbor but not supported here."""
    environments = [("environment", harbor.environment)]
    environments += [
        (f"{part.name and f'steps.{part.name}.'}verifier.environment", part.verifier.environment)
        for part in parts_of(harbor)
        if part.verifier.environment
    ]
    for place, environment in environments:
        if environment.os != "linux":
            raise TaskError(f'{path}: {place}.os: expected "linux" (boxes run nothing else), found {environment.os!r}')
        if environment.gpus:
            raise TaskError(f"{path}: {place}.gpus: expected none (boxes have no GPU), found {environment.gpus}")
        if environment.mcp_servers:
            names = ", ".join(server.name for server in environment.mcp_servers)
            raise TaskError(f"{path}: {place}.mcp_servers: expected none (they are not started here), found {names}")
    services = [
        item.service for part in parts_of(harbor) for item in part.artifacts if item.service not in (None, "main")
    ]
    if services:
        raise TaskError(f"{path}: artifacts: service: expected main, the only container, found {services[0]!r}")


def _setup_of(task: Task, harbor: Harbor, part: Part) -> PartSetup:
    """Return how test.sh is run for a part. Raises TaskError if the part has no test.sh."""
    folders = list(dict.fromkeys((task.directory / "tests", part.folder(task.directory) / "tests")))
    tests: dict[str, Path] = {}
    for folder in folders:  # A step's own tests override the shared ones.
        if folder.is_dir():
            tests |= list_files(folder.parent, "tests")
    own = part.verifier.environment
    image = (own.docker_image or "") if own else ""
    build = next((folder for folder in reversed(folders) if (folder / "Dockerfile").is_file()), None)
    if not part.verifier.separate or image:
        build = None
    if "test.sh" not in tests and not image and not build:
        raise TaskError(f"{folders[-1] / 'test.sh'}: expected a file, there is none")
    env = variables(task.directory / "task.toml", (own or harbor.environment).env, part.verifier.env)
    stated = "timeout_sec" in part.verifier.model_fields_set
    seconds = part.verifier.timeout_sec if stated and part.name else task.limits.verifier_seconds
    return PartSetup(part, harbor.environment, tests, seconds, env, image, build)


def _pass_at(task: Task) -> float:
    found = task.verifier.get("pass_at", 1.0)
    if isinstance(found, bool) or not isinstance(found, int | float):
        place = f"{task.directory / 'task.toml'}: metadata.etude.verifier.pass_at"
        raise TaskError(f"{place}: expected a number, found {found!r}")
    return float(found)


def _only_data(part: Part) -> bool:
    return bool(part.artifacts) and all(posixpath.splitext(item.source)[1] in _DATA for item in part.artifacts)
