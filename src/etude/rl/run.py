"""The RL driver: carries out the reconciler's decisions.

All I/O happens here, around a pure state machine. The driver keeps no state that must survive: what happened is in the
log (`rl/log.py`), from which a killed run is rebuilt. The trainer's checkpoint may be some steps older than the log;
the driver then sends it the batches of these steps again, read from the log.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict
from typing import Any

from etude.cluster import ServiceDied
from etude.engine.protocol import UpdateRefused
from etude.journal import Journal, RunPaths
from etude.recipe import Recipe
from etude.recipe.rl import RlRecipe
from etude.rl.batch import TrainingGroup, TrainingMember
from etude.rl.cores import CoreMeter
from etude.rl.crew import Crew
from etude.rl.log import RlLog, Sampled, for_training
from etude.rl.reconciler import (
    Admitted,
    Finished,
    Group,
    Lost,
    MemberState,
    Plan,
    ProtocolViolation,
    Reconciler,
    Rewound,
    Start,
    Trained,
    TrainStarted,
)
from etude.rollout import RolloutJob, RolloutResult
from etude.tasks import Split, Verdict
from etude.trace import Trace

Update = Callable[[dict[str, Any]], None]
Evaluate = Callable[[Crew, int], Coroutine[Any, Any, None]]


class RlRun:
    def __init__(
        self,
        recipe: Recipe,
        paths: RunPaths,
        crew: Crew,
        journal: Journal,
        prompts: list[str],
        *,
        update: Update,
        evaluate: Evaluate,
    ) -> None:
        """`prompts` are the ids of the train tasks in the order of use; each is used once."""
        self.recipe, self.rl, self.paths, self.crew, self.journal = recipe, recipe.rl, paths, crew, journal
        self.prompts, self.update, self.evaluate = prompts, update, evaluate
        self.limits = recipe.cluster
        self.sync = self.rl.mode == "sync"
        plan = Plan(
            steps=self.rl.steps,
            per_step=self.rl.prompts_per_step,
            group=self.rl.group,
            max_staleness=0 if self.sync else self.rl.max_staleness,
            retries=self.rl.retries,
            # In lockstep all rollouts of a step start together: one that started when another ends would depend on
            # timing.
            slots=self.rl.prompts_per_step * self.rl.group
            if self.sync
            else self.rl.workers * self.rl.rollouts_per_worker,
        )
        self.log = RlLog(paths.rl)
        self.machine = Reconciler.replay(plan, self.log.events())
        self.finished: dict[str, tuple[Trace, Verdict]] = {}
        """Traces and verdicts of finished rollouts whose group is not trained on yet, by rollout id."""
        self._arrived: asyncio.Queue[tuple[int, Sampled]] = asyncio.Queue()
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._rollouts: set[asyncio.Task[None]] = set()
        self._evaluations: set[asyncio.Task[None]] = set()
        self._life = 0
        """Number of lockstep replays so far. Answers of rollouts started before the last replay are ignored."""
        self._replays = 0
        """Number of lockstep replays of the step that is being sampled now."""
        self._replaying = asyncio.Lock()
        self._writing = asyncio.Lock()
        """Held while finished rollouts are written to the log and then passed to the reconciler. A lockstep replay
        (sampling the step again) holds it too, so it cannot come between the two."""

    async def run(self) -> None:
        """Run until every step is trained. Raise any unrecoverable failure; the log is complete at any moment."""
        self._spawn(self.crew.engine.watch(1.0, ask="stats"), self._tasks)
        self._spawn(CoreMeter(self.crew, self.journal).watch(), self._tasks)
        self._spawn(self._store_arrivals(), self._tasks)
        try:
            await self._resume()
            while not self.machine.done:
                self._carry_out()
                on, deadline = self._awaited()
                async with self.journal.waiting(on=on, deadline=deadline):
                    await self._changed.wait()
                self._changed.clear()
                if self._failure is not None:
                    raise self._failure
            if self._evaluations:
                async with self.journal.waiting(on="evaluator", deadline=self.recipe.harness.wall_seconds * 4):
                    await asyncio.gather(*self._evaluations)
        finally:
            tasks = [*self._tasks, *self._rollouts, *self._evaluations]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _resume(self) -> None:
        """Reconcile the log with the trainer and the engine. The trainer may have done one step that the log does not
        have yet, or have lost some that it has. The engine starts with the newest version that can be read."""
        if (await self.crew.rollouts.stats()).version < self.machine.trained:
            await self._ask_trainer(self.machine.trained, "status", deadline=self.limits.call_seconds)
            await self._swap(self.machine.trained)
        status = await self.crew.trainer.call("status", deadline=self.limits.call_seconds)
        training = self.machine.training
        if training is not None and status["step"] == training.step + 1:
            self.update({"step": status["step"], "total": self.rl.steps, **status["metrics"]})
            self._happen(Trained(training.step))
        if self.sync and self.machine.training is None and any(live.touched for live in self.machine.live.values()):
            self._happen(Rewound())
        wanted = {
            self._job(group, member, state.attempt).id
            for group, live in self.machine.live.items()
            for member, state in enumerate(live.members)
        }
        self.finished = await asyncio.to_thread(self.log.restore, wanted)
        # An evaluation that was running, or had not started, when the driver died; `evaluate` skips a finished one.
        await self._evaluate_if_due(self.machine.trained)
        if self.machine.training is not None:
            self._spawn(self._train(self.machine.training), self._tasks)

    def _carry_out(self) -> None:
        while actions := self.machine.decide():
            starts = [action for action in actions if isinstance(action, Start)]
            for action in actions:
                if not isinstance(action, Start):
                    self._happen(action)
                if isinstance(action, TrainStarted):
                    self._spawn(self._train(action), self._tasks)
            for start in starts:
                self.machine.begin(start)
            if starts:
                self._spawn(self._start(starts), self._rollouts)

    async def _start(self, starts: list[Start]) -> None:
        jobs = [self._job(start.group, start.member, start.attempt) for start in starts]
        engine = self.crew.engine.incarnation
        if self.sync:
            # Announce all conversations before any starts: the engine waits for every one of them.
            await self.crew.rollouts.open([job.id for job in jobs])
        for start, job in zip(starts, jobs, strict=True):
            self._spawn(self._roll(start, job, self._life, engine), self._rollouts)

    async def _roll(self, start: Start, job: RolloutJob, life: int, engine: int) -> None:
        worker = self.crew.workers[(start.group * self.rl.group + start.member) % len(self.crew.workers)]
        incarnation = worker.incarnation
        try:
            deadline = self.recipe.harness.wall_seconds * 2
            result: RolloutResult = await worker.remote.call("rollout", job, deadline=deadline)
        except ServiceDied as error:
            if self.sync:
                await self._replay(life, str(error))
                return
            await worker.heal(incarnation, str(error))
            # Rollouts of a killed worker did not fail themselves: sample them again without using up an attempt.
            self.machine.interrupt(start.group, start.member)
            self._changed.set()
            return
        if self.sync and self.crew.engine.incarnation != engine:
            # This rollout went on with a new engine that does not know the other conversations: its batches depended on
            # timing.
            await self._replay(life, "the engine was restarted while the step was sampled")
            return
        if not result.failed_by_us:
            await self._arrived.put((life, Sampled(Finished(start.group, start.member, start.attempt), result)))
            return
        reason = result.trace.error or result.verdict.reason
        if self.sync and (self._replays < self.rl.retries or not await self.crew.engine.still_serves(engine)):
            await self._replay(life, reason)
            return
        self.journal.event("rollout_lost", rollout=job.id, reason=reason)
        await self._arrived.put((life, Sampled(Lost(start.group, start.member, start.attempt, reason), result)))

    async def _replay(self, life: int, reason: str) -> None:
        """Replay the step in lockstep mode: restart engine and workers, and sample the step again from its beginning,
        so that it gives the same bits. `life` is the number of replays (`_life`) when the caller's rollout
        started. Do nothing if another replay has begun since then."""
        async with self._replaying:
            if life != self._life:
                return
            self._life += 1
            self._replays += 1
            self.journal.event("step_replayed", step=self.machine.trained, reason=reason)
            for task in self._rollouts - {asyncio.current_task()}:
                task.cancel()
            for member in (self.crew.engine, *self.crew.workers):
                await member.heal(member.incarnation, reason)
            async with self._writing:
                self.finished.clear()
                self._happen(Rewound())
            self._changed.set()

    async def _store_arrivals(self) -> None:
        """Write finished rollouts to disk in small batches. Their events reach the reconciler only afterwards, so the
        log always holds every event that the reconciler has seen."""
        while True:
            batch = [await self._arrived.get()]
            await asyncio.sleep(0.05)
            while not self._arrived.empty():
                batch.append(self._arrived.get_nowait())
            async with self._writing:
                fresh = [sampled for life, sampled in batch if life == self._life]
                await asyncio.to_thread(self.log.write, fresh)
                for sampled in fresh:
                    self.machine.apply(sampled.event)
                    result = sampled.result
                    if isinstance(sampled.event, Finished):
                        self.finished[result.job.id] = (for_training(result.trace), result.verdict)
            self._changed.set()

    async def _train(self, action: TrainStarted) -> None:
        groups = [self._group(index, self.machine.live[index], self.finished) for index in action.groups]
        begun = time.monotonic()
        if self.rl.take_turns:
            await self.crew.rollouts.rest()
        metrics = await self._ask_trainer(action.step, "train", action.step, groups, deadline=self.limits.train_seconds)
        await self._swap(action.step + 1)
        if self.rl.take_turns:
            await self.crew.rollouts.wake()
        row = {"step": action.step + 1, "total": self.rl.steps, "seconds": time.monotonic() - begun, **metrics}
        self.update(row | {"engine": asdict(await self.crew.rollouts.stats())})
        await self._evaluate_if_due(action.step + 1)
        self._replays = 0
        self._happen(Trained(action.step))
        live = {f"g{index:06d}" for index in self.machine.live}
        self.finished = {name: pair for name, pair in self.finished.items() if pair[0].group in live}
        self._changed.set()

    async def _swap(self, version: int) -> None:
        """Switch the engine to a weight version. If the engine refuses the version as damaged, let the trainer publish
        it again, then try once more."""
        seconds = self.limits.weights_seconds
        try:
            async with self.journal.waiting(on="engine", deadline=seconds):
                await self.crew.rollouts.update(version)
        except UpdateRefused as error:
            self.journal.event("version_refused", version=version, reason=str(error))
            await self._ask_trainer(version, "republish", deadline=seconds)
            async with self.journal.waiting(on="engine", deadline=seconds):
                await self.crew.rollouts.update(version)

    async def export(self) -> None:
        """Let the trainer write the weights after the last step as a Hugging Face checkpoint."""
        await self._ask_trainer(self.rl.steps, "export", deadline=self.limits.weights_seconds)

    async def _ask_trainer(self, done: int, method: str, *args: Any, deadline: float) -> Any:
        """Call a method of the trainer that needs `done` steps to be done. A trainer that died, now or before, is
        restarted and first trains again what it has lost."""
        trainer = self.crew.trainer
        while True:
            seen = trainer.incarnation
            try:
                await self._repeat_lost_steps(done)
                async with self.journal.waiting(on="trainer", deadline=deadline):
                    return await trainer.remote.call(method, *args, deadline=deadline)
            except ServiceDied as death:
                await trainer.heal(seen, str(death))
                self._changed.set()

    async def _repeat_lost_steps(self, done: int) -> None:
        """Send the trainer the batches of all steps between its newest checkpoint and step `done` again. The versions
        that it publishes are there already, with the same bits."""
        trainer, limits = self.crew.trainer.remote, self.limits
        status = await trainer.call("status", deadline=limits.call_seconds)
        for step in range(status["step"], done):
            groups = await self._past_groups(step)
            self.journal.event("step_repeated", step=step)
            async with self.journal.waiting(on="trainer", deadline=limits.train_seconds):
                await trainer.call("train", step, groups, deadline=limits.train_seconds)
            self._changed.set()  # `run` waits as long for each step as for a first one

    async def _past_groups(self, step: int) -> list[TrainingGroup]:
        """Read the batch of an earlier step from the log."""
        past = {index: self.machine.past[index] for index in self.machine.consumed[step]}
        wanted = {
            self._job(i, n, state.attempt).id for i, group in past.items() for n, state in enumerate(group.members)
        }
        found = await asyncio.to_thread(self.log.restore, wanted)
        return [self._group(index, group, found) for index, group in past.items()]

    async def _evaluate_if_due(self, step: int) -> None:
        """Start the evaluation due after `step` steps (0 is before the first update), if there is one.

        In lockstep, sampling waits for the evaluation. At step 0 it waits in any mode; otherwise the first update could
        replace the initial weights before they are evaluated. Other evaluations run while sampling goes on."""
        if step not in evaluated_steps(self.rl):
            return
        evaluation = self.evaluate(self.crew, step)
        if self.sync or step == 0:
            async with self.journal.waiting(on="evaluator", deadline=self.recipe.harness.wall_seconds * 4):
                await evaluation
        else:
            self._spawn(evaluation, self._evaluations)

    def _group(self, index: int, group: Group, finished: Mapping[str, tuple[Trace, Verdict]]) -> TrainingGroup:
        members: list[TrainingMember | None] = []
        for number, member in enumerate(group.members):
            name = self._job(index, number, member.attempt).id
            if member.state is MemberState.DONE and name not in finished:
                raise ProtocolViolation(
                    f"rollout {name} finished, but its trace or record is gone from {self.paths.rl}: restore it, or "
                    "run under another name"
                )
            members.append(TrainingMember(*finished[name]) if member.state is MemberState.DONE else None)
        return TrainingGroup(index, group.version, tuple(members))

    def _job(self, group: int, member: int, attempt: int) -> RolloutJob:
        return RolloutJob(
            task=self.prompts[group],
            split=Split.TRAIN,
            group=f"g{group:06d}",
            member=member,
            seed=self.recipe.seed * 1_000_003 + group * 1009 + member * 13 + attempt,
            attempt=attempt,
            temperature=self.rl.temperature,
        )

    def _happen(self, event: Admitted | TrainStarted | Trained | Rewound) -> None:
        self.log.append(event)
        self.machine.apply(event)

    def _awaited(self) -> tuple[str, float]:
        """Return what the run waits for now, and its deadline."""
        seconds = self.recipe.harness.wall_seconds * 4
        if self.machine.training is None or self.machine.in_flight:
            return "rollouts", seconds
        return "trainer", max(seconds, self.limits.train_seconds + self.limits.weights_seconds)

    def _spawn(self, work: Coroutine[Any, Any, None], among: set[asyncio.Task[None]]) -> None:
        task = asyncio.create_task(work)
        among.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            among.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                self._failure = error
                self._changed.set()

        task.add_done_callback(ended)


def evaluated_steps(rl: RlRecipe) -> list[int]:
    """Return the steps after which dev is evaluated: 0, every `evaluate_every`-th and the last; none if
    `evaluate_every` is 0."""
    return sorted({*range(0, rl.steps, rl.evaluate_every), rl.steps}) if rl.evaluate_every else []
