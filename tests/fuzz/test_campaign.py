"""The fuzzer itself: it finds what is planted, by whatever it harms, and survives it."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import strategies as st
from tests.fuzz.campaign import keep_breaks, run_campaign, seeds_of
from tests.fuzz.inputs import Inputs
from tests.fuzz.target import Target
from tests.fuzz.worker import Progress

NESTED = re.compile(rb"(a+)+b")


def planted(run: Callable[[bytes], object], *, examples: tuple[bytes, ...] = (b"begin {}",), **bounds: float) -> Target:
    def named(data: bytes) -> str:
        run(data)
        return "ok"

    inputs = st.binary(max_size=40)
    return Target("planted", named, inputs, (__name__,), lambda: list(examples), **bounds)  # type: ignore[arg-type]


def campaign(target: Target, seeds: Path, seconds: float = 20, **options: object) -> Progress:
    return run_campaign(target, seconds, 1, seeds=seeds, **options)  # type: ignore[arg-type]


def deep(data: bytes) -> None:
    """An input is found step by step: each comparison is a line of its own."""
    if data[:1] != b"b":
        return
    if data[1:2] != b"e":
        return
    if data[-1:] != b"}":
        return
    if data[-2:-1] == b"}":
        raise KeyError("planted")


def test_an_exception_is_found_and_its_input_shrunk_and_kept(tmp_path: Path) -> None:
    progress = campaign(planted(deep), tmp_path, seconds=3)
    assert [(broken.kind, broken.what.split(":")[0]) for broken in progress.breaks] == [
        ("exception", "KeyError in test_campaign.py")
    ]
    data = progress.breaks[0].data
    assert data == b"be}}"
    target = planted(deep)
    assert [path.read_bytes() for path in keep_breaks(target, progress, tmp_path)] == [data]
    assert data in seeds_of(target, tmp_path)
    again = campaign(target, tmp_path, seconds=0)
    assert [broken.data for broken in again.breaks] == [data], "a kept input is run first"


@pytest.mark.parametrize(
    ("run", "kind", "what"),
    [
        (lambda data: NESTED.match(b"a" * 40 if data else b""), "time", "more than 0.1 s of CPU time"),
        (lambda data: b"x" * (24 << 20 if data else 1), "memory", "MiB; at most 16 are allowed"),
        (lambda data: bytearray(8 << 30) if data else b"", "memory", "the process's limit"),
        (lambda data: os.abort() if data else None, "death", "SIGABRT"),
        (lambda data: os._exit(3) if data else None, "death", "exit code 3"),
        (lambda data: ctypes.string_at(8) if data else None, "death", "SIGSEGV"),
        (lambda data: data * 100, "", ""),
    ],
)
def test_whatever_an_input_harms(tmp_path: Path, run: Callable[[bytes], object], kind: str, what: str) -> None:
    progress = campaign(planted(run, examples=(b"x",), seconds=0.1, megabytes=16), tmp_path, seconds=0.3)
    kinds = {broken.kind for broken in progress.breaks}
    assert kinds == ({kind} if kind else set())
    assert all(what in broken.what and broken.data for broken in progress.breaks)


def test_a_loop_in_c_is_ended_by_the_kernel(tmp_path: Path) -> None:
    def run(data: bytes) -> None:
        if data:
            int("9" * 4000) ** 200_000  # Python sees no signal while it multiplies.

    progress = campaign(planted(run, examples=(b"x",), seconds=0.1), tmp_path, seconds=0.1)
    assert {broken.kind for broken in progress.breaks} <= {"death", "time"}
    assert progress.breaks


def test_what_is_large_but_allowed_is_measured(tmp_path: Path) -> None:
    progress = campaign(planted(lambda data: b"x" * (8 << 20)), tmp_path, seconds=0.3)
    assert progress.breaks == []
    assert 7 << 20 <= progress.worst_bytes < 32 << 20


def test_a_campaign_is_the_same_each_time_and_goes_on_where_it_was(tmp_path: Path) -> None:
    inputs = [Inputs(st.binary(max_size=40), 100, seed) for seed in (1, 1, 2)]
    first, same, other = ([each.next() for _ in range(50)] for each in inputs)
    assert first == same != other
    found, reported = tmp_path / "found", list[Progress]()
    target = planted(deep, examples=(b"",))
    campaign(target, tmp_path / "none", seconds=1, found=found)
    assert b"b" in {path.read_bytes()[:1] for path in found.iterdir()}
    campaign(target, tmp_path / "none", seconds=0, found=found, say=reported.append)
    assert reported[-1].inputs == len(list(found.iterdir())) + 1, "those that were found, and the example"
