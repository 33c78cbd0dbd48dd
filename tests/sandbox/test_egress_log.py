"""The log of egress: every request, and refusals within bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.sandbox.egress import log, read_log
from etude.sandbox.egress.log import BoxLog, EgressLog


def test_rows_of_several_backends_come_by_time(tmp_path: Path) -> None:
    first, second = (BoxLog(EgressLog(tmp_path, owner), f"box of {owner}", "p") for owner in ("a", "b"))
    for number in range(3):
        first.passed(status=number)
        second.refused("no", status=number)
    rows = list(read_log(tmp_path))
    assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)
    assert [row["status"] for row in rows if row["box"] == "box of a"] == [0, 1, 2]
    assert {row["refused"] for row in rows if row["box"] == "box of b"} == {"no"}
    assert list(read_log(tmp_path / "nowhere")) == []


def test_refusals_are_bounded_and_requests_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MOST_REFUSALS", 5)
    box = BoxLog(EgressLog(tmp_path, "a"), "box", "p")
    for number in range(20):
        box.refused("no")
        box.passed(status=number)
    for name in ("Evil.example", "evil.example", "EVIL.example"):
        box.refused_name(name, "no pattern")
    box.close()
    rows = list(read_log(tmp_path))
    assert sum("status" in row for row in rows) == 20
    assert sum(row.get("refused") == "no" for row in rows) == 5
    assert rows[-1]["refused"] == "16 more, not written"


def test_a_name_is_told_once_and_nothing_is_told_at_length(tmp_path: Path) -> None:
    box = BoxLog(EgressLog(tmp_path, "a"), "box", "p")
    for name in ("Evil.example", "evil.example", "x" * 5000):
        box.refused_name(name, "no pattern")
    assert [len(row["host"]) for row in read_log(tmp_path)] == [12, 2000]
