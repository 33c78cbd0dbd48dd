from __future__ import annotations

import asyncio
import pickle
import time
from pathlib import Path

import pytest

from etude.journal import Journal, WaitExpired, read_journal


def outcomes(folder: Path) -> list[tuple[object, object]]:
    return [(entry.fields["on"], entry.fields["outcome"]) for entry in read_journal(folder, kind="wait")]


def test_a_wait_is_recorded_with_its_length(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "driver")
    begun = time.monotonic()
    with journal.waiting(on="engine", deadline=5):
        time.sleep(0.05)
    (entry,) = read_journal(tmp_path)
    assert 0.05 <= float(str(entry.fields["seconds"])) < time.monotonic() - begun
    assert entry.fields["deadline"] == 5


def test_a_blocking_wait_records_failure_and_lateness(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "driver")
    with journal.waiting(on="engine", deadline=0.01):
        time.sleep(0.03)
    with pytest.raises(KeyError), journal.waiting(on="trainer", deadline=600):
        raise KeyError
    assert outcomes(tmp_path) == [("engine", "late"), ("trainer", "failed")]


def test_an_expired_wait_names_who_waited_for_whom(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "driver")

    async def wait() -> None:
        async with journal.waiting(on="engine", deadline=0.02):
            await asyncio.sleep(600)

    with pytest.raises(WaitExpired, match=r"driver waited 0.02 s for engine, which did not answer") as caught:
        asyncio.run(wait())
    assert outcomes(tmp_path) == [("engine", "expired")]
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.on) == (str(caught.value), "engine")


def test_a_timeout_of_the_body_and_a_cancellation_go_their_way(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "driver")

    async def own_timeout() -> None:
        async with journal.waiting(on="engine", deadline=5):
            raise TimeoutError("the body's own")

    async def cancelled() -> None:
        async def wait() -> None:
            async with journal.waiting(on="trainer", deadline=600):
                await asyncio.sleep(600)

        task = asyncio.create_task(wait())
        await asyncio.sleep(0.01)
        task.cancel()
        await task

    with pytest.raises(TimeoutError, match="the body's own") as caught:
        asyncio.run(own_timeout())
    assert not isinstance(caught.value, WaitExpired)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    assert outcomes(tmp_path) == [("engine", "failed"), ("trainer", "cancelled")]


def test_nobody_waits_without_a_deadline(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs a deadline above 0"):
        Journal(tmp_path, "driver").waiting(on="engine", deadline=0)
