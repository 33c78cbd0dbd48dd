"""The run, with the real reconciler and the real log, through every death: each prompt is trained exactly once."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.rl.make import tiny_recipe
from tests.rl.services import Engine

from etude.cluster import DeadlineExceeded, Supervised, open_cluster
from etude.engine.remote import RemoteEngine
from etude.journal import Journal, RunPaths, read_journal
from etude.recipe.compute import ClusterRecipe
from etude.rl import Crew, RlRun
from etude.rl.reconciler import ProtocolViolation
from etude.rl.run import Evaluate

STEPS, PER_STEP, GROUP = 5, 2, 3


async def _no_evaluation(crew: Crew, step: int) -> None:
    raise AssertionError("the recipe asks for none")


async def _drive(
    root: Path,
    mode: str,
    seed: int,
    life: int,
    victims: list[str],
    *,
    evaluate_every: int = 0,
    evaluate: Evaluate = _no_evaluation,
    trainer: str = "Trainer",
    limits: ClusterRecipe | None = None,
    after: dict[int, str] | None = None,
) -> bool:
    """One life of the driver; True when the run is complete. Kills the victims one after another, then maybe itself.
    `after` names who dies after which step."""
    rl = {"mode": mode, "steps": STEPS, "prompts_per_step": PER_STEP, "group": GROUP, "workers": 2}
    recipe = tiny_recipe(**rl, evaluate_every=evaluate_every, take_turns=trainer == "TurnTakingTrainer")
    recipe = recipe.model_copy(update={"cluster": limits or ClusterRecipe()})
    chance = random.Random(seed * 100 + life)
    paths = RunPaths(root)
    cluster = await open_cluster("inline", run_folder=root)
    journal = Journal(paths.journal, "driver")

    async def start(name: str, service: str, *args: object) -> Supervised:
        remote = await cluster.start(name, f"tests.rl.services:{service}", *args)
        return Supervised(remote, 100, on_event=journal.event)

    engine = await start("engine", "Engine")
    workers = [await start(f"worker-{n}", "Worker", seed * 10 + life + n) for n in range(2)]
    more = (STEPS,) if trainer == "ForgetfulTrainer" else ()
    training, evaluator = await start("trainer", trainer, str(root), *more), await start("evaluator", "Worker", 0)
    crew = Crew(training, engine, workers, evaluator, RemoteEngine(engine.remote, recipe.cluster))
    dying = dict(after or {})

    def update(values: dict[str, Any]) -> None:
        if victim := dying.pop(values["step"], None):
            harms.append(asyncio.create_task(kill(victim)))

    async def kill(victim: str) -> None:
        if victim == "driver":
            going.cancel()
        else:
            await cluster.remotes[victim].kill()

    run = RlRun(
        recipe,
        paths,
        crew,
        journal,
        [f"task-{n}" for n in range(STEPS * PER_STEP)],
        update=update,
        evaluate=evaluate,
    )
    going = asyncio.create_task(run.run())

    async def harm() -> None:
        for victim in victims:
            await asyncio.sleep(chance.uniform(0.02, 0.25))
            await kill(victim)

    harms = [asyncio.create_task(harm())]
    try:
        with suppress(asyncio.CancelledError):
            await going
        return run.machine.done
    finally:
        for harming in harms:
            harming.cancel()
        await cluster.close()
        journal.close()


def check(root: Path) -> None:
    rows = [json.loads(line) for line in (root / "trained.jsonl").read_text().splitlines()]
    assert len(rows) == STEPS
    assert sorted(group for row in rows for group in row["groups"]) == list(range(STEPS * PER_STEP))
    assert max(age for row in rows for age in row["staleness"]) <= 2
    assert all(count >= 1 for row in rows for count in row["members"])


def live_through(root: Path, mode: str, seed: int, plans: list[list[str]], trainer: str = "Trainer") -> None:
    root.mkdir(exist_ok=True)
    for life, victims in enumerate([*plans, []]):
        if asyncio.run(asyncio.wait_for(_drive(root, mode, seed, life, victims, trainer=trainer), 60)):
            break
    check(root)


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("victim", ["worker-0", "engine", "trainer", "driver"])
def test_one_death(victim, mode, tmp_path) -> None:
    live_through(tmp_path / "run", mode, 1, [[victim]])


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_the_engine_rests_while_the_trainer_takes_a_step(mode, tmp_path) -> None:
    live_through(tmp_path / "run", mode, 1, [[]], "TurnTakingTrainer")
    assert not Engine.resting


def test_the_journal_says_who_used_the_cores_for_as_long_as_the_driver_lived(tmp_path) -> None:
    live_through(tmp_path / "run", "async", 1, [["driver"]])
    rows = list(read_journal(tmp_path / "run" / "journal", kind="cores"))
    assert len({row.fields["seconds"] for row in rows}) >= 2, "one at the end of each life at least"
    for row in rows:
        fields: dict[str, Any] = row.fields
        assert set(fields["used"]) == {"driver"}, "inline, all services live in the driver's process"
        assert 0 <= fields["used"]["driver"] <= fields["cores"] * fields["seconds"] + 0.1


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_steps_that_the_trainer_forgot_are_sent_again(mode, tmp_path) -> None:
    root = tmp_path / "run"
    root.mkdir()
    forgetful = {"trainer": "ForgetfulTrainer"}
    assert asyncio.run(_drive(root, mode, 1, 0, [], **forgetful, after={2: "trainer"}))
    check(root)
    repeated = [entry.fields["step"] for entry in read_journal(root / "journal", kind="step_repeated")]
    assert repeated == [0, 1], "those before step 2, whose batch is the first that the new trainer does not know"


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_after_the_drivers_death_trainer_and_engine_are_brought_to_the_step_of_the_log(mode, tmp_path) -> None:
    root = tmp_path / "run"
    root.mkdir()
    Engine.updates.clear()
    forgetful = {"trainer": "ForgetfulTrainer"}
    assert not asyncio.run(_drive(root, mode, 1, 0, [], **forgetful, after={3: "driver"}))
    (root / "trained.jsonl").unlink()  # the newest checkpoint is damaged
    before = len(Engine.updates)
    assert asyncio.run(_drive(root, mode, 1, 1, [], **forgetful))
    check(root)
    assert Engine.updates[before:] == [3, 4, 5], "the trained version first, before anything is sampled"


def test_a_lost_step_whose_rollouts_are_gone_is_named(tmp_path) -> None:
    root = tmp_path / "run"
    root.mkdir()
    forgetful = {"trainer": "ForgetfulTrainer"}
    assert not asyncio.run(_drive(root, "async", 1, 0, [], **forgetful, after={2: "driver"}))
    for file in (root / "rl" / "traces").iterdir():
        file.unlink()
    with pytest.raises(ProtocolViolation, match=r"rollout g0.* finished, but its trace or record is gone from .*/rl"):
        asyncio.run(_drive(root, "async", 1, 1, [], **forgetful))


@pytest.mark.parametrize(("seed", "trainer"), [(0, "Trainer"), (1, "Trainer"), (2, "Trainer"), (3, "ForgetfulTrainer")])
def test_many_deaths_of_everybody(seed, trainer, tmp_path) -> None:
    chance = random.Random(seed)
    everybody = ["worker-0", "worker-1", "engine", "trainer"]
    plans = [[*chance.choices(everybody, k=2), "driver"] for _ in range(4)]
    live_through(tmp_path / "run", chance.choice(["async", "sync"]), seed, plans, trainer)


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_curve_of_evaluations_begins_before_the_first_step_and_ends_after_the_last(mode, tmp_path) -> None:
    root = tmp_path / "run"
    root.mkdir()
    finished: list[int] = []

    def events() -> list[str]:
        file = root / "rl" / "events.jsonl"
        return [json.loads(line)["event"] for line in file.read_text().splitlines()] if file.exists() else []

    async def evaluate(crew: Crew, step: int) -> None:
        await asyncio.sleep(0.05)
        if step == 0:
            assert events() == [], "nothing begins before it has ended: every token of it is of version 0"
        finished.append(step)

    async def live() -> bool:
        return await _drive(root, mode, 1, 0, [], evaluate_every=2, evaluate=evaluate)

    assert asyncio.run(asyncio.wait_for(live(), 60))
    assert sorted(finished) == [0, 2, 4, 5]
    check(root)


LIMITS = ClusterRecipe(call_seconds=0.1)


def test_a_train_step_may_take_longer_than_a_short_call(tmp_path) -> None:
    (tmp_path / "run").mkdir()
    assert asyncio.run(_drive(tmp_path / "run", "async", 1, 0, [], trainer="SlowTrainer", limits=LIMITS))
    check(tmp_path / "run")


def test_a_status_that_hangs_is_noticed_after_the_deadline_of_a_short_call(tmp_path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(DeadlineExceeded, match=r"trainer\.status did not answer within 0\.1 s"):
        asyncio.run(_drive(tmp_path / "run", "async", 1, 0, [], trainer="HangingTrainer", limits=LIMITS))
