from __future__ import annotations

import time

import pytest

from etude.tasks.verifiers.tests.starvation import Watch, starved


@pytest.mark.parametrize(
    ("waited", "load", "cpu", "excused"),
    [
        (0.9, 10.0, 10.0, True),  # A tenth of a hundred seconds, beside ten others.
        (0.9, 10.0, 7.0, False),  # It slept a part of them.
        (0.9, 10.0, 0.1, False),  # A time bomb.
        (0.1, 10.0, 10.0, False),  # Nobody waited.
        (0.9, 1.0, 33.0, False),  # On a quiet host the limit on CPU time comes first.
    ],
)
def test_only_who_wanted_time_and_had_none_is_excused(waited: float, load: float, cpu: float, excused: bool) -> None:
    assert starved(waited, load, cpu, 100.0) is excused


def test_a_run_that_sleeps_is_not_excused_whatever_the_host_does() -> None:
    with Watch() as watch:
        time.sleep(0.05)
    assert watch.seconds >= 0.05
    assert not watch.starved(0.0)
