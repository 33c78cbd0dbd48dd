from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from etude.journal import Journal, ProgressLine, read_journal


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def plain_console() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, force_terminal=False, width=100), out


def test_plain_lines_now_and_then(tmp_path: Path) -> None:
    console, out = plain_console()
    clock = Clock()
    with ProgressLine("pretrain", 100, console=console, clock=clock) as line:
        for done in range(1, 26):
            clock.now += 1
            line.update(done, rate=12_345, rate_unit="tokens/s", note="loss [1.25]")
    assert out.getvalue().splitlines() == [
        "pretrain          1/100 steps  12.3k tokens/s  1:39 left  loss [1.25]",
        "pretrain          11/100 steps  12.3k tokens/s  1:29 left  loss [1.25]",
        "pretrain          21/100 steps  12.3k tokens/s  1:19 left  loss [1.25]",
        "pretrain          25/100 steps  12.3k tokens/s  1:15 left  loss [1.25]",
    ]


def test_a_resumed_stage_does_not_count_what_was_done_before() -> None:
    clock = Clock()
    line = ProgressLine("rl", 30, start=20, unit="batches", clock=clock, console=plain_console()[0])
    clock.now += 10
    line.update(25)
    assert line.text() == "25/30 batches  2.0 s each  0:10 left"


def test_the_time_left_follows_the_pace_of_the_last_stretch() -> None:
    clock = Clock()
    line = ProgressLine("sft", 100_000, clock=clock, console=plain_console()[0])
    for done in range(10, 101, 10):
        clock.now += 10
        line.update(done)
    for done in range(1100, 10_001, 1000):
        clock.now += 10
        line.update(done)
    assert line.text() == "9100/100.0k steps  100 steps/s  15:09 left"


def test_the_journal_hears_of_it_once_a_second_and_at_the_end(tmp_path: Path) -> None:
    clock = Clock()
    journal = Journal(tmp_path, "driver")
    with ProgressLine("mtp", 40, journal=journal, console=plain_console()[0], clock=clock) as line:
        for done in range(1, 41):
            clock.now += 0.125
            line.update(done)
    entries = list(read_journal(tmp_path, kind="progress"))
    assert [entry.fields["done"] for entry in entries] == [1, 9, 17, 25, 33, 40]
    assert entries[-1].fields["unit"] == "steps/s"
    assert round(float(str(entries[-1].fields["rate"])), 3) == 8


def test_a_terminal_gets_a_live_bar() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    with ProgressLine("long", 10, console=console) as line:
        line.update(10, note="done now")
    shown = out.getvalue()
    assert "long" in shown
    assert "10/10 steps" in shown
    assert "done now" in shown
    assert "\x1b[?25h" in shown, "the cursor is shown again"
