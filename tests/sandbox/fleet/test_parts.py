"""The scheduler's parts, each against the plainest model of it."""

from __future__ import annotations

from copy import copy
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from etude.sandbox.fleet.bucket import TokenBucket
from etude.sandbox.fleet.pressure import Gauge, capacity_of_this_machine
from etude.sandbox.fleet.timers import Timers


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
    capacity, gauge = capacity_of_this_machine(tmp_path), Gauge(tmp_path)
    spin = sum(n * n for n in range(300_000))
    used = gauge.look()
    assert spin
    assert 0 < used.memory_mb < capacity.total.memory_mb
    assert 0 < used.disk_mb < capacity.total.disk_mb
    assert used.cpus >= 0
