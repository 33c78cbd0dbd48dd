"""The benchmark of attacks: a mode is a process of its own, whose outcomes come back whole."""

from __future__ import annotations

import _attack_modes as modes
import attacks
import pytest

from etude.sandbox.attacks import Outcome, cells


def test_a_modes_outcomes_come_back_from_its_own_process() -> None:
    held, lacking = modes.outcomes_of("plain", 1, ["descriptors", "system-calls"], cheats=False)
    assert (held.attack, held.tried, held.breaches, held.undecided) == ("descriptors", 3, (), "")
    assert lacking == Outcome("system-calls", "system calls", lacks=("system_calls",))


def test_what_a_host_cannot_have_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def starts(words: list[str]) -> str:
        return '{"missing": "docker needs dockerd"}\n'

    monkeypatch.setitem(modes.MODES, "docker", modes.Mode("docker", modes.MODES["docker"].opens, starts))
    with pytest.raises(modes.NotHere, match="needs dockerd"):
        modes.outcomes_of("docker", 1, [], cheats=False)


def test_the_result_counts_every_cell() -> None:
    drawn = {
        "one": cells([Outcome("a", "x", 3, ("out",)), Outcome("b", "y", lacks=("fork",))]),
        "two": cells([Outcome("a", "x", 2, undecided="why")]),
    }
    assert attacks.summary(drawn, 7) == {
        "modes": 2,
        "classes": 2,
        "attempts": 5,
        "succeeded": 1,
        "undecided": 1,
        "races_tries": 7,
        "table": {"one": {"x": "3: 1", "y": "no fork"}, "two": {"x": "2: 0 ?1"}},
    }
