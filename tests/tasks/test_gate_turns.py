"""Turns: how many run at once, who is collected for a busy machine, and that nobody is left waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.tasks.gate import admission as turning
from etude.tasks.gate.admission import GradingQueue


class Spinning:
    """In the place of processes: how many are inside, and how often the machine became busy."""

    def __init__(self) -> None:
        self.inside = self.times = 0

    def begin(self) -> None:
        self.times += not self.inside
        self.inside += 1

    def end(self) -> None:
        self.inside -= 1


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turning, "CpuLoad", Spinning)


def load_of(waiters: GradingQueue) -> Spinning:
    assert isinstance(waiters._load, Spinning)
    return waiters._load


def waiting(waiters: GradingQueue) -> int:
    return sum(not mine.done() for waiters in waiters._waiting.values() for mine in waiters)


@settings(deadline=None)
@given(
    slots=st.integers(1, 4),
    busy_batch=st.integers(1, 5),
    plans=st.lists(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=4), max_size=12),
    cancelled=st.sets(st.integers(0, 11)),
    after=st.integers(0, 8),
)
def test_all_come_to_their_turn_and_never_too_many(
    slots: int,
    busy_batch: int,
    plans: Sequence[Sequence[tuple[bool, int]]],
    cancelled: set[int],
    after: int,
) -> None:
    async def run() -> None:
        waiters, running, ended = GradingQueue(slots, busy_batch), 0, set[int]()

        async def one(number: int) -> None:
            nonlocal running
            for busy, ticks in plans[number]:
                async with waiters.turn(busy=busy):
                    running += 1
                    try:
                        assert running <= slots
                        assert load_of(waiters).inside or not busy
                        for _ in range(ticks):
                            await asyncio.sleep(0)
                            assert not waiters._free or not waiting(waiters)
                    finally:
                        running -= 1
            ended.add(number)

        tasks = [asyncio.create_task(one(number)) for number in range(len(plans))]
        for _ in range(after):
            await asyncio.sleep(0)
        for number in cancelled & set(range(len(plans))):
            tasks[number].cancel()
        async with asyncio.timeout(10):
            found = await asyncio.gather(*tasks, return_exceptions=True)
        assert not [error for error in found if isinstance(error, Exception)]
        assert ended >= set(range(len(plans))) - cancelled
        assert not load_of(waiters).inside
        assert waiters._free == slots

    asyncio.run(run())


async def test_what_wants_a_busy_machine_is_collected() -> None:
    queue = GradingQueue(2, busy_batch=6)

    async def one() -> None:
        for busy in (False, False, False, True):
            async with queue.turn(busy=busy):
                await asyncio.sleep(0)

    await asyncio.gather(*(one() for _ in range(12)))
    assert load_of(queue).times <= 2


async def test_nobody_waits_for_company_that_does_not_come() -> None:
    queue = GradingQueue(2, busy_batch=99)
    async with asyncio.timeout(10), queue.turn(), queue.turn(busy=True):
        assert load_of(queue).inside == 1
