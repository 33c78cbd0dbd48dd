"""Every core-second of RL has a name: who used it, or who waited while nobody did."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.journal import Entry, RunPaths
from etude.view.cores import NOBODY, OTHER_WAITS, OTHERS, USERS, Parts, Sample, attributed, samples_of, summed
from etude.view.data import RunData
from etude.view.plots import FIGURES

PROCESSES = ("engine", "trainer", "worker-0", "worker-1", "evaluator", "driver")
ON = ("engine", "rollouts", "trainer", "evaluator", "requests")
amounts = st.floats(0, 20)


@st.composite
def timelines(draw) -> tuple[list[Sample], dict[tuple[str, str], list[tuple[float, float]]]]:
    """Samples one after another, with clocks as they please; waits anywhere, those of a pair apart from each other."""
    samples, now = [], draw(st.floats(0, 5))
    for _ in range(draw(st.integers(1, 6))):
        seconds = draw(st.floats(0.01, 4))
        now += seconds + draw(st.sampled_from([0.0, 3.0]))
        used = draw(st.dictionaries(st.sampled_from(PROCESSES), amounts))
        samples.append(Sample(now, seconds, draw(st.integers(1, 8)), draw(amounts), used, draw(amounts)))
    waits = {}
    for pair in draw(st.lists(st.tuples(st.sampled_from(PROCESSES), st.sampled_from(ON)), unique=True, max_size=6)):
        edges = sorted(draw(st.lists(st.floats(-2, 40), min_size=2, max_size=8, unique=True)))
        waits[pair] = list(zip(edges[::2], edges[1::2], strict=False))
    return samples, waits


@given(timelines())
def test_the_parts_of_each_sample_sum_up_to_its_cores_times_its_seconds(timeline) -> None:
    samples, waits = timeline
    parts = attributed(samples, waits)
    assert len(parts) == len(samples)
    for sample, part in zip(samples, parts, strict=True):
        assert part.seconds == pytest.approx(sample.cores * sample.seconds)
        assert min([*part.used.values(), *part.idle.values()]) >= -1e-9
    whole = summed(parts)
    assert whole.seconds == pytest.approx(sum(sample.cores * sample.seconds for sample in samples))
    assert whole.seconds == pytest.approx(
        sum(whole.used[n] for n in whole.users) + sum(whole.idle[n] for n in whole.waits)
    )


def one(sample: Sample, **waits: list[tuple[float, float]]) -> Parts:
    """`worker_engine=[...]`: who waited for whom, in whole."""
    pairs = {tuple(name.replace("worker", "worker-0").split("_")): spans for name, spans in waits.items()}
    (parts,) = attributed([sample], pairs)
    return parts


def test_what_was_used_is_told_by_service_and_what_others_used_too() -> None:
    used = {"engine": 0.5, "worker-0": 0.25, "worker-1": 0.25, "driver": 0.1}
    parts = one(Sample(10.0, 1.0, 2, 1.5, used))
    assert dict(parts.used) == pytest.approx(
        {"engine": 0.5, "workers, their boxes": 0.5, "driver, ray": 0.1, OTHERS: 0.4}
    )
    assert parts.users == [name for name in USERS if name in parts.used]
    assert dict(parts.idle) == pytest.approx({NOBODY: 0.5}), "nobody waited"


def test_an_idle_core_is_put_down_to_who_waited_just_then() -> None:
    sample = Sample(10.0, 1.0, 2, 1.0, {"engine": 1.0})
    assert one(sample, trainer_rollouts=[(0.0, 20.0)]).idle["trainer for rollouts"] == pytest.approx(1.0)
    early = one(sample, trainer_rollouts=[(0.0, 9.0), (10.0, 11.0)])
    assert dict(early.idle) == pytest.approx({NOBODY: 1.0}), "before and after do not count"
    half = one(sample, trainer_rollouts=[(9.5, 12.0)])
    assert dict(half.idle) == pytest.approx({"trainer for rollouts": 0.5, NOBODY: 0.5})
    both = one(sample, trainer_rollouts=[(0.0, 20.0)], worker_engine=[(0.0, 20.0)])
    assert dict(both.idle) == pytest.approx({"trainer for rollouts": 0.5, "workers for engine": 0.5, NOBODY: 0.0})


def test_who_computes_while_it_waits_is_no_reason_that_a_core_is_idle() -> None:
    """A worker always has some rollout that waits for the engine, also while it works on others."""
    used = {"engine": 0.2, "worker-0": 1.0}
    parts = one(Sample(10.0, 1.0, 2, 1.2, used, 0.8), worker_engine=[(0.0, 20.0)])
    assert dict(parts.idle) == pytest.approx({"engine for requests": 0.64, NOBODY: 0.16})


def test_that_the_driver_waits_for_rollouts_and_for_the_trainer_is_its_work() -> None:
    sample = Sample(10.0, 1.0, 2, 1.0, {"evaluator": 1.0})
    forever = [(0.0, 20.0)]
    parts = one(sample, driver_rollouts=forever, driver_trainer=forever, driver_evaluator=forever)
    assert dict(parts.idle) == pytest.approx({"driver for evaluator": 1.0, NOBODY: 0.0})


def test_waits_that_hardly_cost_anything_share_a_line() -> None:
    samples = [Sample(float(second), 1.0, 2, 1.0, {"engine": 1.0}) for second in range(1, 201)]
    waits = {("trainer", "rollouts"): [(0.0, 199.0)], ("evaluator", "engine"): [(199.5, 199.7)]}
    whole = summed(attributed(samples, waits))
    assert whole.waits == ["trainer for rollouts", OTHER_WAITS, NOBODY]
    assert whole.idle[OTHER_WAITS] == pytest.approx(0.2)


def test_rows_of_the_journal_are_read_whatever_lies_between_them() -> None:
    fields = {"seconds": 1.0, "cores": 2, "busy": 1.5, "used": {"engine": 1.0}, "engine_waited": 0.25}
    entries = [Entry(7.0, "driver", 2, "cores", fields), Entry(6.0, "driver", 1, "cores", fields)]
    entries.append(Entry(6.5, "driver", 1, "wait", {"on": "trainer", "seconds": 1.0}))
    assert samples_of(entries) == [Sample(end, 1.0, 2, 1.5, {"engine": 1.0}, 0.25) for end in (6.0, 7.0)]
    assert samples_of([]) == [] == attributed([], {})


def test_in_the_picture_no_two_look_alike(tmp_path) -> None:
    waits = [f"evaluator for engine {number}" for number in range(12)]
    parts = [Parts(used={USERS[0]: 0.5, USERS[1]: 0.3}, idle=dict.fromkeys(waits, 0.1))]
    data = RunData(RunPaths(tmp_path), {}, {}, cores=[Sample(1.0, 1.0, 2, 0.8, {})], parts=parts)
    figure = FIGURES["cores"](data)
    assert figure is not None
    bars = figure.axes[0].patches
    assert len({(bar.get_facecolor(), bar.get_hatch()) for bar in bars}) == len(bars) == 14
