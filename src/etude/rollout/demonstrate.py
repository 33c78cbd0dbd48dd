"""Collects demonstrations for SFT: a scripted expert (oracle) acts in the unchanged harness, and its turns are recorded
as tokens as if a model had sampled them.

Only train tasks are used, with the kinds of bug that the recipe names. Only episodes (rollouts of the expert) that pass
grading are kept. An episode's number fixes its task and seed, so a recipe always gives the same demonstrations, in
whatever order episodes finish.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from etude.harness.policies.recording import RecordingPolicy
from etude.harness.policy import Policy
from etude.journal import Journal, write_atomically
from etude.rollout.job import RolloutJob, RolloutResult
from etude.rollout.rollout import run_rollout
from etude.rollout.setup import RolloutSetup, Subject, subject_of
from etude.tasks.oracle import OraclePolicy, shell_of
from etude.tasks.task import Split, Task
from etude.text.format import Format
from etude.trace.builder import TraceBuilder
from etude.trace.file import TraceWriter
from etude.trace.trace import Trace

WRITE_TOGETHER = 256
MOST_EPISODES_PER_DEMONSTRATION = 2
"""Maximum number of episodes (rollouts of the expert) per requested demonstration, plus `concurrency` episodes in all.
A few episodes fail (budget spent, wrong edit), but if more fail than pass, something is broken."""

Expert = Callable[[Task, int], Policy]


class TooFewDemonstrations(Exception):
    """The expert failed too often to collect the requested number of demonstrations. The message counts the reasons."""


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """Counts of one folder of demonstrations, as stored in its summary.json."""

    kept: int
    episodes: int
    errors: int
    """Number of episodes (rollouts of the expert) that ended in an infrastructure error."""
    summarised: int
    """Number of kept episodes (rollouts of the expert that passed) with at least one self-summary."""
    tokens: int
    sampled_tokens: int
    by_kind: dict[str, int]

    @property
    def summary_share(self) -> float:
        return self.summarised / self.kept if self.kept else 0.0


def oracle(slip: float = 0.0, rewrites: float = 1.0, tools: Collection[str] = ("shell",)) -> Expert:
    """Return an expert that knows each task's solution, and works with an agent's tools.

    `slip`: probability that its first edit is wrong, fails the check and is repaired. `rewrites`: probability that it
    rewrites the whole failing function instead of only the wrong line."""
    shell = shell_of(tools)
    return lambda task, seed: OraclePolicy(task, seed, slip=slip, rewrites=rewrites, shell=shell)


async def demonstrate(
    tasks: Sequence[Task],
    setup: RolloutSetup,
    form: Format,
    context: int,
    folder: Path,
    *,
    count: int,
    kinds: Sequence[str] = (),
    seed: int = 0,
    expert: Expert | None = None,
    concurrency: int = 16,
    journal: Journal | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Demonstrations:
    """Collect `count` demonstrations into `folder`/part-*.parquet, then write `folder`/summary.json.

    If summary.json exists, the folder is complete: its counts are returned and nothing runs."""
    done = folder / "summary.json"
    if done.exists():
        return Demonstrations(**json.loads(done.read_text(encoding="utf-8")))
    eligible = [task.require(Split.TRAIN) for task in tasks if not kinds or task.kind in kinds]
    if not eligible:
        raise TooFewDemonstrations(f"no train task to demonstrate; kinds asked for: {', '.join(kinds) or 'any'}")
    for leftover in folder.glob("part-*.parquet"):
        leftover.unlink()
    make = expert or oracle()
    writer = TraceWriter(folder)
    subjects: dict[str, Subject] = {}
    kept: Counter[str] = Counter()
    """Number of episodes (rollouts of the expert) that passed and were kept, by kind of task."""
    totals: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    unwritten: list[Trace] = []
    episodes = 0

    def policy(job: RolloutJob, task: Task, recorder: TraceBuilder) -> RecordingPolicy:
        return RecordingPolicy(make(task, job.seed), form, setup.profile(task).schemas(), context, recorder)

    async def episode(number: int) -> RolloutResult:
        task = eligible[number % len(eligible)]
        if task.id not in subjects:
            subjects[task.id] = await subject_of(task, setup.environments)
        job = RolloutJob(task.id, Split.TRAIN, group=f"demo:{task.id}", member=number, seed=_seed(seed, number))
        return await run_rollout(job, subjects[task.id], policy, setup)

    while kept.total() < count:
        if episodes >= count * MOST_EPISODES_PER_DEMONSTRATION + concurrency:
            reasons = "; ".join(f"{reason} ({number})" for reason, number in failures.most_common(3))
            raise TooFewDemonstrations(
                f"only {kept.total()} of {count} demonstrations passed in {episodes} episodes; most frequent reasons: "
                f"{reasons}"
            )
        # Whole waves, read in order: which episodes are kept does not depend on which finish first.
        wave = range(episodes, episodes + min(concurrency * 4, count - kept.total()))
        for result in await _together(episode, wave, concurrency):
            if result.verdict.passed:
                trace = result.trace
                unwritten.append(trace)
                kept[subjects[trace.task].task.kind] += 1
                totals["summarised"] += trace.usage.summaries > 0
                totals["tokens"] += sum(len(segment.tokens) for segment in trace.segments)
                totals["sampled_tokens"] += trace.usage.sampled_tokens
            else:
                failures[f"{result.trace.stop}: {result.verdict.reason}"] += 1
                totals["errors"] += result.failed_by_us
        episodes = wave.stop
        progress(kept.total(), count)
        if len(unwritten) >= WRITE_TOGETHER or kept.total() >= count:
            await asyncio.to_thread(writer.write, unwritten)
            unwritten = []
    counts = {name: totals[name] for name in ("errors", "summarised", "tokens", "sampled_tokens")}
    found = Demonstrations(kept=kept.total(), episodes=episodes, by_kind=dict(sorted(kept.items())), **counts)
    write_atomically(done, (json.dumps(asdict(found), indent=2) + "\n").encode())
    if journal is not None:
        journal.event("demonstrated", **asdict(found), summary_share=found.summary_share)
    return found


async def _together(
    episode: Callable[[int], Awaitable[RolloutResult]], numbers: Iterable[int], at_once: int
) -> list[RolloutResult]:
    gate = asyncio.Semaphore(at_once)

    async def gated(number: int) -> RolloutResult:
        async with gate:
            return await episode(number)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(gated(number)) for number in numbers]
    return [task.result() for task in tasks]


def _seed(seed: int, number: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}:{number}".encode(), digest_size=4).digest()) >> 1
