"""Whose fault an expired wall clock is: on numbers, on this host, and on a host that says less."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from etude.sandbox import cpu_share as room
from etude.sandbox.contract import ExecResult
from etude.sandbox.cpu_share import Share, ShareMeter

HUNGRY = Share(100.0, 90.0, 10.0, 10.0)


@pytest.mark.parametrize(
    ("share", "excused"),
    [
        (HUNGRY, True),  # A tenth of a hundred seconds, beside ten others.
        (Share(100.0, 90.0, 10.0, 7.0), False),  # It slept a part of them.
        (Share(100.0, 90.0, 10.0, 0.1), False),  # A time bomb.
        (Share(100.0, 10.0, 10.0, 10.0), False),  # Nobody waited.
        (Share(100.0, 90.0, 100.0, 33.0), False),  # On a quiet host the limit on CPU time comes first.
        (Share(100.0, 90.0, 50.0, 50.0), False),  # Beside one other: an endless loop had time enough.
        (Share(100.0, 90.0, 5.0, 190.0), False),  # It kept two cores busy itself, with many processes.
        (Share(), False),  # Nobody measured.
    ],
)
def test_only_who_wanted_time_and_had_none_is_excused(share: Share, excused: bool) -> None:
    assert share.starved is excused


def test_a_command_is_excused_for_the_clock_alone() -> None:
    assert ExecResult(137, b"", b"", 100.0, timed_out=True, limit="time", share=HUNGRY).starved
    assert not ExecResult(137, b"", b"", 100.0, limit="memory", share=HUNGRY).starved
    assert not ExecResult(137, b"", b"", 100.0, timed_out=True, truncated=True, limit="time", share=HUNGRY).starved
    assert not ExecResult(137, b"", b"", 100.0, timed_out=True, limit="time").starved


def test_runs_under_one_clock_are_judged_together() -> None:
    """The first had too little, and left the second no time; a first that slept is no excuse for either."""
    second = Share(0.5, 0.4, 0.05, 0.0)
    assert not second.starved
    assert (Share(29.5, 29.0, 2.0, 2.0) + second).starved
    assert not (Share(29.5, 29.0, 2.0, 0.1) + Share(0.5, 0.4, 0.05, 0.05)).starved


def test_load_is_of_the_last_minute_or_of_now_and_per_core(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(room, "_LOAD", tmp_path / "loadavg")
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    loads = {"40.0 0.5 0.5 1/300 7": 10.0, "0.5 900.0 900.0 80/300 7": 20.0, "0.0 0.0 0.0 1/9 7": 1.0}
    for said, load in loads.items():
        (tmp_path / "loadavg").write_text(said)
        share = ShareMeter().share(1.0)
        assert share.given == pytest.approx(share.seconds / load)


def test_where_the_kernel_does_not_say_who_waits_the_load_decides(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(room, "_PRESSURE", tmp_path / "absent")
    monkeypatch.setattr(room, "_load_per_core", lambda: 20.0)
    watch = ShareMeter()
    time.sleep(0.02)
    share = watch.share(0.0)
    assert not share.starved
    assert replace(share, cpu_seconds=share.given).starved


def test_waiting_is_told_in_seconds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pressure = tmp_path / "cpu"
    monkeypatch.setattr(room, "_PRESSURE", pressure)
    pressure.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=5000000\nfull avg10=0.00 total=0\n")
    watch = ShareMeter()
    pressure.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=6500000\nfull avg10=0.00 total=0\n")
    assert watch.share(0.0).waited == pytest.approx(1.5)
