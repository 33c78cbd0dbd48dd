"""The event loop of pid 1 and of the zygote."""

from __future__ import annotations

import os
import time

from etude.sandbox.inside.events import Events


def test_a_paused_reader_is_called_after_its_pause_unless_it_is_forgotten() -> None:
    events, seen = Events(), list[int]()
    pipes = [os.pipe() for _ in range(2)]
    for reading, writing in pipes:
        os.write(writing, b"x")
        events.read(reading, lambda number=reading: seen.append(number))  # type: ignore[misc]
        events.pause_reading(reading, 0.3)  # long, so that a busy machine comes to the first wait before its end
    (first, _), (second, _) = pipes
    events.forget(second)
    assert not events.wait(1)
    began = time.monotonic()
    assert not events.wait(None), "it wakes up in time by itself"
    assert time.monotonic() - began >= 0.1
    assert events.wait(0)
    assert seen == [first]
    for pipe in pipes:
        for number in pipe:
            os.close(number)
