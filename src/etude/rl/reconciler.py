"""The reconciler decides which rollout to start and when to train. It is a pure state machine.

To admit a prompt is to create its group of rollouts, which may be started from then on.

Invariants, whatever the order of events (tests/rl/test_reconciler.py tries arbitrary orders):
- every prompt is admitted once, and every admitted group is trained on (or dropped by the trainer) exactly once;
- a group is trained on at most `max_staleness` versions after the one it was admitted under. This is achieved by
  limiting admission and by the order of training; finished work is never thrown away;
- the machine never deadlocks as long as rollouts finish or are lost.

Version v means "after v steps". A group's deadline is the last step that may train on it: its admitted version plus
max_staleness. A step takes the ready groups with the earliest deadlines. It waits while too few groups are ready, or
while taking these would make another group miss its deadline.

There is no I/O here: `decide` says what to do, `apply` records what happened, and the events form the log from which a
killed run is rebuilt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True)
class Plan:
    steps: int
    per_step: int
    """Number of groups that each step trains on."""
    group: int
    """Number of rollouts per prompt."""
    max_staleness: int
    retries: int
    slots: int
    """Maximum number of rollouts in flight."""

    @property
    def prompts(self) -> int:
        return self.steps * self.per_step


@dataclass(frozen=True, slots=True)
class Admitted:
    group: int
    version: int


@dataclass(frozen=True, slots=True)
class Finished:
    group: int
    member: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Lost:
    """An attempt failed because of infrastructure. It is retried; after the last retry the member is masked."""

    group: int
    member: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class TrainStarted:
    step: int
    groups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Trained:
    step: int


@dataclass(frozen=True, slots=True)
class Rewound:
    """Event: all rollouts not trained on yet are sampled again from their first attempt (lockstep replay)."""


Event = Admitted | Finished | Lost | TrainStarted | Trained | Rewound


@dataclass(frozen=True, slots=True)
class Start:
    group: int
    member: int
    attempt: int
    version: int


Action = Admitted | Start | TrainStarted


class MemberState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    MASKED = "masked"


@dataclass(slots=True)
class Member:
    state: MemberState = MemberState.WAITING
    attempt: int = 0


@dataclass(slots=True)
class Group:
    version: int
    members: list[Member]

    @property
    def touched(self) -> bool:
        return any(m != Member() for m in self.members)

    @property
    def ready(self) -> bool:
        return all(m.state in (MemberState.DONE, MemberState.MASKED) for m in self.members)


class ProtocolViolation(Exception):
    """An event that cannot follow the earlier ones: the driver has a bug, or the log is damaged."""


@dataclass(slots=True)
class Reconciler:
    plan: Plan
    trained: int = 0
    """Number of steps done; also the current weight version."""
    admitted: int = 0
    live: dict[int, Group] = field(default_factory=dict)
    """Groups of rollouts that are admitted (may be sampled) and not yet trained on, by index."""
    past: dict[int, Group] = field(default_factory=dict)
    """Groups that were trained on, by index. Decisions do not depend on them; they tell of which attempts a step that
    the trainer has to repeat consisted."""
    training: TrainStarted | None = None
    consumed: list[tuple[int, ...]] = field(default_factory=list)
    """Indices of the groups that each step trained on, in order of steps."""
    lost: int = 0
    masked: int = 0

    @classmethod
    def replay(cls, plan: Plan, events: Iterable[Event]) -> Reconciler:
        """Rebuild the state from a log's events. Rollouts that were running when the log ended are waiting again."""
        machine = cls(plan)
        for event in events:
            machine.apply(event)
        return machine

    @property
    def done(self) -> bool:
        return self.trained >= self.plan.steps

    @property
    def in_flight(self) -> int:
        return sum(m.state is MemberState.RUNNING for g in self.live.values() for m in g.members)

    def deadline(self, group: int) -> int:
        return self.live[group].version + self.plan.max_staleness

    def decide(self) -> list[Action]:
        """Return what may happen now: events, which the caller applies, and starts, which it passes to `begin`."""
        actions: list[Action] = []
        if self.training is None and not self.done:
            chosen = self._next_batch()
            if chosen:
                actions.append(TrainStarted(self.trained, chosen))
        room = (self.plan.max_staleness + 1) * self.plan.per_step - len(self.live)
        last = min(self.plan.prompts, self.admitted + max(room, 0))
        actions.extend(Admitted(group, self.trained) for group in range(self.admitted, last))
        free = self.plan.slots - self.in_flight
        for index in sorted(self.live, key=lambda g: (self.deadline(g), g)):
            for number, member in enumerate(self.live[index].members):
                if free <= 0:
                    return actions
                if member.state is MemberState.WAITING:
                    actions.append(Start(index, number, member.attempt, self.live[index].version))
                    free -= 1
        return actions

    def begin(self, start: Start) -> None:
        """Mark a rollout as handed to a worker. Not logged: after a crash the rollout starts again anyway."""
        member = self._member(start.group, start.member)
        if member.state is not MemberState.WAITING or member.attempt != start.attempt:
            raise ProtocolViolation(f"{start} but the rollout is {member.state}, attempt {member.attempt}")
        member.state = MemberState.RUNNING

    def interrupt(self, group: int, member: int) -> None:
        """Set a running rollout back to waiting without using up an attempt, since the rollout itself did not fail."""
        one = self._member(group, member)
        if one.state is MemberState.RUNNING:
            one.state = MemberState.WAITING

    def apply(self, event: Event) -> None:
        match event:
            case Admitted(group, version):
                if group != self.admitted or version != self.trained:
                    raise ProtocolViolation(f"{event} but {self.admitted} is next, at version {self.trained}")
                self.live[group] = Group(version, [Member() for _ in range(self.plan.group)])
                self.admitted += 1
            case Finished(group, number, attempt):
                if (member := self._current(group, number, attempt)) is not None:
                    member.state = MemberState.DONE
            case Lost(group, number, attempt, _):
                if (member := self._current(group, number, attempt)) is not None:
                    self._lose(member)
            case TrainStarted(step, groups):
                if self.training is not None or step != self.trained or not all(g in self.live for g in groups):
                    raise ProtocolViolation(f"{event} but step {self.trained} is next, training {self.training}")
                self.training = event
            case Trained(step):
                if self.training is None or self.training.step != step:
                    raise ProtocolViolation(f"{event} but {self.training} is being trained")
                for group in self.training.groups:
                    self.past[group] = self.live.pop(group)
                self.consumed.append(self.training.groups)
                self.training = None
                self.trained += 1
            case Rewound():
                if self.training is not None:
                    raise ProtocolViolation(f"{event} but {self.training} is being trained")
                for live in self.live.values():
                    live.members = [Member() for _ in live.members]

    def _lose(self, member: Member) -> None:
        self.lost += 1
        member.attempt += 1
        if member.attempt > self.plan.retries:
            member.state = MemberState.MASKED
            self.masked += 1
        else:
            member.state = MemberState.WAITING

    def _member(self, group: int, number: int) -> Member:
        if group not in self.live:
            raise ProtocolViolation(f"group {group} is not live")
        return self.live[group].members[number]

    def _current(self, group: int, number: int, attempt: int) -> Member | None:
        """Return the member of the group that an attempt belongs to. Return None if the attempt was given up earlier,
        so that its result comes too late."""
        if group not in self.live:
            return None
        member = self.live[group].members[number]
        over = member.state in (MemberState.DONE, MemberState.MASKED)
        return None if over or member.attempt != attempt else member

    def _next_batch(self) -> tuple[int, ...]:
        """Return the ready groups with the earliest deadlines; none if too few are ready, or if taking these would make
        another group miss its deadline."""
        ready = sorted((g for g, group in self.live.items() if group.ready), key=lambda g: (self.deadline(g), g))
        chosen = ready[: self.plan.per_step]
        if len(chosen) < self.plan.per_step:
            return ()
        left = sorted(self.deadline(g) for g in self.live if g not in set(chosen))
        for position, deadline in enumerate(left):
            steps_from_now = position // self.plan.per_step + 1
            if self.trained + steps_from_now > deadline:
                return ()
        return tuple(sorted(chosen))


_EVENTS: dict[str, type[Any]] = {
    cls.__name__: cls for cls in (Admitted, Finished, Lost, TrainStarted, Trained, Rewound)
}


def event_to_json(event: Event) -> dict[str, Any]:
    return {"event": type(event).__name__, **asdict(event)}


def event_from_json(values: dict[str, Any]) -> Event:
    fields = dict(values)
    try:
        cls = _EVENTS[fields.pop("event")]
        if "groups" in fields:
            fields["groups"] = tuple(fields["groups"])
        event: Event = cls(**fields)
    except (KeyError, TypeError) as error:
        raise ProtocolViolation(f"not an event of the reconciler: {values}") from error
    return event
