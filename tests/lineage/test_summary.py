from __future__ import annotations

from etude.lineage.summary import _engine_totals


def test_counters_are_summed_over_restarts_of_the_engine_and_steps_that_lack_them() -> None:
    counts = [(5, 2), None, (9, 4), (3, 1), (4, 1)]  # None: the driver died before it had asked.
    rows = [
        {} if count is None else {"engine": dict(zip(("decode_steps", "swaps"), count, strict=True))}
        for count in counts
    ]
    assert _engine_totals(rows) == {"decode_steps": 13, "swaps": 5}
    assert _engine_totals([{}]) == {}
