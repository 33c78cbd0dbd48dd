from __future__ import annotations

import asyncio
import pickle

import pytest
from tests.harness.parts import ScriptedEngine, compact_format, playing, written

from etude.engine.protocol import EngineOutOfMemory
from etude.journal import RunPaths, read_journal
from etude.recipe import Recipe
from etude.rollout import RolloutJob, RolloutWorker
from etude.tasks.oracle import reference_repair
from etude.tasks.task import Split, SplitViolation

RECIPE = Recipe.model_validate({"name": "rollout-tests"})


@pytest.fixture
def run_folder(tmp_path, tasks_folder, train):
    paths = RunPaths(tmp_path)
    compact_format().tokenizer.save(paths.tokenizer)
    paths.tasks.symlink_to(tasks_folder)
    return paths


def play(paths, engine, work, **recipe):
    plain = RECIPE.model_copy(update=recipe).model_dump(mode="json", by_alias=True)

    async def main():
        worker = RolloutWorker(str(paths.root), plain, engine)
        try:
            return await work(worker)
        finally:
            await worker.close()

    return asyncio.run(main())


def test_a_group_of_rollouts_at_once(run_folder, train):
    repair = reference_repair(train[0])
    steps = [
        "shell python check.py",
        f"edit {repair.file} {repair.line} {repair.right}",
        "shell python check.py",
        "finish",
    ]
    turns = {}

    def write(request):
        left = turns.setdefault(request.conversation, list(steps))
        return written(left.pop(0))

    engine = ScriptedEngine(write)

    async def work(worker):
        jobs = [RolloutJob(train[0].id, Split.TRAIN, "g1", member) for member in range(6)]
        return await asyncio.gather(*[worker.rollout(job) for job in jobs]), await worker.stats()

    results, stats = play(run_folder, engine, work)
    assert all(result.verdict.passed for result in results)
    assert sorted(engine.closed) == [f"g1/{member:03d}.0" for member in range(6)]
    assert (stats["finished"], stats["errors"], stats["running"]) == (6, 0, 0)
    # Equal commands over equal files ran once; equal solutions were graded once.
    assert (stats["commands_run"], stats["commands_shared"]) == (2, 10)
    assert (stats["gradings_run"], stats["gradings_shared"]) == (1, 5)
    again = pickle.loads(pickle.dumps(results[0]))
    assert again.trace.id == "g1/000.0"
    assert (again.trace.segments[0].tokens == results[0].trace.segments[0].tokens).all()


def test_lost_rollouts_are_journaled(run_folder, train):
    def fail(request):
        from etude.engine.protocol import EngineError

        raise EngineError("gone")

    async def work(worker):
        return await worker.rollout(RolloutJob(train[0].id, Split.TRAIN, "g1"))

    assert play(run_folder, ScriptedEngine(fail), work).failed_by_us
    events = list(read_journal(run_folder.journal, kind="rollout_failed"))
    assert events[0].fields == {"rollout": "g1/000.0", "reason": "PolicyError: EngineError: gone"}


def test_an_engine_that_is_lost_before_the_first_turn_is_our_error(run_folder, train):
    from etude.engine.protocol import EngineError

    class Gone(ScriptedEngine):
        async def open(self, conversations):
            raise EngineError("gone before it began")

    async def work(worker):
        return await worker.rollout(RolloutJob(train[0].id, Split.TRAIN, "g1"))

    lockstep = RECIPE.rl.model_copy(update={"mode": "sync"})
    result = play(run_folder, Gone(playing([written("finish")])), work, rl=lockstep)
    assert (result.failed_by_us, result.trace.error) == (True, "EngineError: gone before it began")


def test_the_test_split_stays_closed(run_folder, train):
    async def work(worker):
        with pytest.raises(SplitViolation):
            await worker.rollout(RolloutJob(train[0].id, Split.TEST))
        with pytest.raises(Exception, match=train[0].id):
            await worker.rollout(RolloutJob(train[0].id, Split.DEV))

    play(run_folder, ScriptedEngine(playing([written("finish")])), work)


def test_an_engine_without_memory_fails_no_rollout(run_folder, train):
    """The driver, which watches the engine, ends the run; a rollout that is lost would be tried again and counted."""

    def write(request):
        raise EngineOutOfMemory("a step of the engine ran out of memory")

    async def work(worker):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await worker.rollout(RolloutJob(train[0].id, Split.TRAIN, "g1", 0))
        return await worker.stats()

    assert play(run_folder, ScriptedEngine(write), work)["errors"] == 0
