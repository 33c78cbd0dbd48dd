from __future__ import annotations

from dataclasses import replace

from _fleet_simulation import Scene, Simulation

from etude.sandbox.fleet.policy import Policy

SMALL = Scene(boxes=4_000, hosts=25, deaths=8, drains=3, fill_seconds=100, steady_seconds=30)


def test_a_seed_decides_everything_but_the_time_it_takes() -> None:
    tiny = replace(SMALL, boxes=500, hosts=5, deaths=2, drains=1)
    first, second, other = (
        replace(Simulation(replace(tiny, seed=seed), Policy()).run(), placements_per_second=0) for seed in (1, 1, 2)
    )
    assert first == second != other


def test_a_fleet_with_room_packs_well_and_keeps_nobody_waiting() -> None:
    outcome = Simulation(SMALL, Policy()).run()
    assert outcome.boxes > 3_000
    assert outcome.rejected == 0
    assert outcome.lost > 0, "hosts died"
    assert outcome.packing > 0.85
    assert outcome.p99_wait_ms < 150
    assert outcome.worst < 1.1


def test_a_fleet_that_is_too_small_rejects_and_stays_within_its_ceiling() -> None:
    outcome = Simulation(replace(SMALL, hosts=6, deaths=0, drains=0), Policy(patience=10.0)).run()
    assert outcome.rejected > 100
    assert outcome.worst < 1.1
    assert outcome.packing > 0.95
    assert 1_000 < outcome.p99_wait_ms <= 10_500
