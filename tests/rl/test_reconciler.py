"""The reconciler is driven through any order of events and any death; its invariants must hold in all of them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.rl.reconciler import (
    Admitted,
    Event,
    Finished,
    Lost,
    MemberState,
    Plan,
    ProtocolViolation,
    Reconciler,
    Start,
    Trained,
    TrainStarted,
    event_from_json,
    event_to_json,
)

plans = st.builds(
    Plan,
    steps=st.integers(1, 5),
    per_step=st.integers(1, 3),
    group=st.integers(2, 3),
    max_staleness=st.integers(0, 3),
    retries=st.integers(0, 2),
    slots=st.integers(1, 12),
)


class World:
    """Everything outside the reconciler: runs rollouts and steps, in an order that the test chooses."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.log: list[Event] = []
        self.machine = Reconciler(plan)
        self.running: list[Start] = []
        self.training: TrainStarted | None = None
        self.admitted: dict[int, int] = {}
        self.trained: dict[int, int] = {}
        self.finished: dict[tuple[int, int], int] = {}
        """The attempt with which each member finished, by group and member."""
        self.most_in_flight = 0

    def happen(self, event: Event) -> None:
        self.log.append(event_from_json(event_to_json(event)))
        self.machine.apply(event)

    def settle(self) -> None:
        while actions := self.machine.decide():
            for action in actions:
                match action:
                    case Admitted(group, version):
                        assert group not in self.admitted
                        self.admitted[group] = version
                        self.happen(action)
                    case Start():
                        self.machine.begin(action)
                        self.running.append(action)
                    case TrainStarted():
                        assert self.training is None
                        self.training = action
                        self.happen(action)
            self.most_in_flight = max(self.most_in_flight, len(self.running))

    def die(self) -> None:
        """The driver is killed: only the log survives, and the trainer, which may or may not have done its step."""
        before, self.machine = self.machine, Reconciler.replay(self.plan, self.log)
        for part in ("trained", "admitted", "consumed", "training", "past"):
            assert getattr(self.machine, part) == getattr(before, part)
        assert self.machine.in_flight == 0
        self.running = []

    def train(self) -> None:
        assert self.training is not None
        for group in self.training.groups:
            assert group not in self.trained
            self.trained[group] = self.training.step
        step, self.training = self.training.step, None
        self.happen(Trained(step))


@settings(max_examples=120, deadline=None)
@given(plan=plans, data=st.data())
def test_any_order_trains_each_prompt_once_and_never_too_late(plan: Plan, data: st.DataObject) -> None:
    world = World(plan)
    deaths = 0
    for _ in range(4000):
        world.settle()
        if world.machine.done:
            break
        choices = ["finish", "lose"] if world.running else []
        if world.training is not None:
            choices.append("train")
        if deaths < 3:
            choices.append("die")
        assert world.running or world.training is not None, "deadlock"
        choice = data.draw(st.sampled_from(choices))
        if choice == "train":
            world.train()
        elif choice == "die":
            deaths += 1
            world.die()
        else:
            start = world.running.pop(data.draw(st.integers(0, len(world.running) - 1)))
            if choice == "finish":
                world.happen(Finished(start.group, start.member, start.attempt))
                world.finished[start.group, start.member] = start.attempt
            else:
                world.happen(Lost(start.group, start.member, start.attempt, "killed"))
    assert world.machine.done
    assert sorted(world.trained) == list(range(plan.prompts))
    assert Counter(world.trained.values()) == dict.fromkeys(range(plan.steps), plan.per_step)
    for group, step in world.trained.items():
        assert 0 <= step - world.admitted[group] <= plan.max_staleness
        for number, member in enumerate(world.machine.past[group].members):
            finished = member.attempt if member.state is MemberState.DONE else None
            assert world.finished.get((group, number)) == finished, "a repeated step finds what it consisted of"
    assert world.most_in_flight <= plan.slots


def test_a_straggler_holds_the_step_only_when_it_would_become_too_old() -> None:
    plan = Plan(steps=4, per_step=1, group=2, max_staleness=1, retries=0, slots=8)
    world = World(plan)
    world.settle()
    slow = [s for s in world.running if s.group == 0]
    for start in [s for s in world.running if s.group == 1]:
        world.happen(Finished(start.group, start.member, start.attempt))
    world.settle()
    assert world.training == TrainStarted(0, (1,)), "the first step need not wait for group 0"
    world.train()
    world.settle()
    for start in [s for s in world.running if s.group == 2]:
        world.happen(Finished(start.group, start.member, start.attempt))
    world.settle()
    assert world.training is None, "group 0 has to be in the second step"
    for start in slow:
        world.happen(Finished(start.group, start.member, start.attempt))
    world.settle()
    assert world.training == TrainStarted(1, (0,))


def test_late_answers_of_given_up_attempts_change_nothing() -> None:
    plan = Plan(steps=1, per_step=1, group=2, max_staleness=0, retries=1, slots=8)
    world = World(plan)
    world.settle()
    first = world.running[0]
    world.happen(Lost(first.group, first.member, 0, "worker died"))
    world.happen(Finished(first.group, first.member, 0))
    assert world.machine.live[0].members[0].attempt == 1
    assert not world.machine.live[0].ready
    world.happen(Lost(first.group, first.member, 1, "worker died"))
    assert world.machine.masked == 1


@pytest.mark.parametrize(
    "event",
    [Admitted(1, 0), Admitted(0, 1), TrainStarted(0, (0,)), Trained(0)],
)
def test_impossible_events_are_refused(event: Event) -> None:
    machine = Reconciler(Plan(steps=1, per_step=1, group=2, max_staleness=0, retries=0, slots=1))
    with pytest.raises(ProtocolViolation):
        machine.apply(event)


def test_damaged_log_lines_are_refused() -> None:
    with pytest.raises(ProtocolViolation):
        event_from_json({"event": "Unheard", "step": 1})
    with pytest.raises(ProtocolViolation):
        event_from_json({"event": "Trained", "stp": 1})
