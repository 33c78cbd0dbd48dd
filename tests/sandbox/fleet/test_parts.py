"""The scheduler's parts, each against the plainest model of it."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.sandbox.fleet.ledger import HostLedger
from etude.sandbox.fleet.load_meter import LoadMeter
from etude.sandbox.fleet.policy import Policy
from etude.sandbox.fleet.resources import Capacity, Resources
from etude.sandbox.fleet.timers import Timers
from etude.sandbox.fleet.token_bucket import TokenBucket


@given(
    st.floats(0.1, 100),
    st.integers(1, 20),
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 4)), max_size=40),
)
def test_a_bucket_gives_what_it_was_filled_with(rate: float, burst: int, tries: list[tuple[float, int]]) -> None:
    bucket, now, taken = TokenBucket(rate, burst, 0.0), 0.0, 0
    for pause, count in tries:
        now += pause
        ready = bucket.ready_at(now)
        if ready <= now:
            bucket.take(count, now)
            taken += count
        else:
            # Of a copy, since looking fills it: what time brings later must not be there now.
            assert copy(bucket).ready_at(ready) <= ready, "it keeps its promise"
    assert taken <= burst + rate * now + 4


@given(st.lists(st.tuples(st.floats(0, 10), st.sampled_from("ab"), st.sampled_from("xyz")), max_size=30))
def test_timers_ring_once_at_the_earliest_moment_set(sets: list[tuple[float, str, str]]) -> None:
    timers, expected = Timers(), {}
    for moment, kind, key in sets:
        timers.set(moment, kind, key)
        expected[kind, key] = min(moment, expected.get((kind, key), moment))
    assert timers.next_moment == min(expected.values(), default=None)
    rung = []
    for now in sorted({0.0, 5.0, *expected.values()}):
        while (due := timers.pop(now)) is not None:
            assert expected[due] <= now
            rung.append(due)
    assert sorted(rung) == sorted(expected)


def test_the_gauge_reads_this_machine(tmp_path: Path) -> None:
    meter = LoadMeter(tmp_path)
    capacity = meter.capacity
    spin = sum(n * n for n in range(300_000))
    used = meter.measure()
    assert spin
    assert 0 < used.memory_mb < capacity.total.memory_mb
    assert used.disk_mb < capacity.total.disk_mb
    assert used.cpus >= 0


def test_files_of_others_take_no_room_from_boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine tenths of a disk are in use before the first box: what counts is how much of the rest went since."""
    free = [10_000]

    def statvfs(_: object) -> SimpleNamespace:
        return SimpleNamespace(f_blocks=100_000, f_bavail=free[0], f_frsize=1 << 20)

    monkeypatch.setattr("etude.sandbox.fleet.load_meter.os.statvfs", statvfs)
    meter = LoadMeter(tmp_path)
    assert meter.capacity.total.disk_mb == 10_000
    ledger = HostLedger("h", meter.capacity, Policy(), 0.0)
    for left, used, fits in ((12_000, 0, True), (9_000, 1_000, True), (1_500, 8_500, False)):
        free[0] = left
        ledger.report(replace(meter.measure(), cpus=0, memory_mb=0), 0.0, 0.0)
        assert ledger.load.disk_mb == used
        assert ledger.fits(Resources(disk_mb=100), 1) is fits
    assert ledger.shortages(Resources(disk_mb=100), 1) == ["disk (8,500 of 8,500 MiB in use, 100 wanted)"]


def test_a_shortage_is_told_in_words() -> None:
    ledger = HostLedger("h", Capacity(Resources(2, 1_000, 1_000), boxes=2), Policy(), 0.0)
    assert ledger.shortages(Resources(0.25, 800, 800), 1) == []
    ledger.reserve(("a", "b"), Resources(1.5, 400, 10))
    assert ledger.shortages(Resources(0.25, 100, 100), 1) == [
        "cores (3.0 of 3.0 busy)",
        "memory (800 of 850 MiB in use, 100 wanted)",
        "boxes (2 of 2 in use, 1 wanted)",
    ]
