"""The benchmark of attacks: a mode is a process of its own, whose outcomes come back whole, also if it crashes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import _attack_modes as modes
import attacks
import pytest
from tests.sandbox.test_attacks import rows_of

from etude.sandbox import SandboxUnavailable
from etude.sandbox.attacks import ATTACKS, Outcome, cells

DESCRIPTORS = modes.Part("attacks", ("descriptors",), 1)
OUT = Outcome("descriptors", "filling up", 1, ("out",))
_LATE = "no end within 3600 s"
Starts = Callable[[list[str], float], str]


def mode_that(monkeypatch: pytest.MonkeyPatch, starts: Starts) -> None:
    monkeypatch.setitem(modes.MODES, "docker", replace(modes.MODES["docker"], starts=starts))


def test_a_modes_outcomes_come_back_from_its_own_process() -> None:
    held, lacking = modes.outcomes_of("plain", modes.Part("attacks", ("descriptors", "system-calls"), 1))
    assert (held.attack, held.tried, held.breaches, held.undecided) == ("descriptors", 3, (), "")
    assert lacking == Outcome("system-calls", "system calls", lacks=("system_calls",))


def test_what_a_host_cannot_have_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    mode_that(monkeypatch, lambda *_: '{"missing": "docker needs dockerd"}\n')
    with pytest.raises(modes.NotHere, match="needs dockerd"):
        modes.outcomes_of("docker", DESCRIPTORS)


@pytest.mark.parametrize(
    ("end", "why"),
    [('{"broken": "MemoryError: "}\n', "MemoryError: "), ('{"atta', _LATE), ("", _LATE)],
)
def test_a_mode_that_crashes_is_undecided_and_keeps_its_outcomes(
    monkeypatch: pytest.MonkeyPatch, end: str, why: str
) -> None:
    mode_that(monkeypatch, lambda *_: f"{json.dumps(asdict(OUT))}\n{end}")
    monkeypatch.setitem(modes.MODES, "docker", replace(modes.MODES["docker"], slow=False))
    assert modes.outcomes_of("docker", DESCRIPTORS) == [OUT, Outcome("the mode itself", "filling up", undecided=why)]


def test_a_crash_as_an_ordinary_user_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    try:
        said = modes._as_nobody(["plain", "1", "no-such-attack", ""], 60)
    except modes.NotHere as reason:
        pytest.skip(str(reason))
    assert json.loads(said) == {"broken": "KeyError: 'no-such-attack'"}
    assert "Traceback" in capfd.readouterr().err


def test_a_process_that_takes_too_long_keeps_what_it_printed() -> None:
    said = modes._run(["sh", "-c", "echo found; exec sleep 60"], 2)
    assert said == "found\n"


def test_a_backend_that_fails_later_is_not_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fails(*_: object, **__: object) -> None:
        raise SandboxUnavailable("no more")

    monkeypatch.setattr(modes, "run_attacks", fails)
    with pytest.raises(SandboxUnavailable):
        modes.main(["plain", "1", "descriptors", ""])
    assert json.loads(capsys.readouterr().out) == {"broken": "SandboxUnavailable: no more"}


def test_an_interrupted_run_goes_on_at_the_next_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[list[str]] = []

    def starts(words: list[str], seconds: float) -> str:
        asked.append(words)
        return f'{json.dumps(asdict(OUT))}\n{{"end": true}}\n' if len(asked) > 1 else ""

    mode_that(monkeypatch, starts)
    (undecided,), _ = modes.measured("docker", DESCRIPTORS, tmp_path)
    assert undecided.undecided
    first = modes.measured("docker", DESCRIPTORS, tmp_path)
    assert modes.measured("docker", DESCRIPTORS, tmp_path) == first == ([OUT], first[1])
    assert len(asked) == 2
    modes.measured("docker", replace(DESCRIPTORS, races=2), tmp_path)
    assert len(asked) == 3


def test_the_threat_model_has_each_class_of_the_grader_with_its_invariant() -> None:
    assert rows_of("What a change cannot do") == {each.name: each.invariant for each in modes.GRADERS}


def test_the_tries_of_a_race_are_parts() -> None:
    race = "waking-in-a-fork"
    found = modes.parts(["descriptors", race], 120, cheats=True)
    assert [(part.name, part.attacks, part.races) for part in found] == [
        ("attacks", ("descriptors", race), 50),
        ("waking-in-a-fork-50", (race,), 50),
        ("waking-in-a-fork-100", (race,), 20),
        ("cheats", (), 0),
    ]
    assert [part.name for part in modes.parts(list(ATTACKS), 20, cheats=False)] == ["attacks"]
    first, slow = modes.parts(list(ATTACKS), 1000, cheats=False)[0], modes.MODES["root-cgroup2"]
    assert first.seconds(modes.MODES["root"]) == 3600 + 4 * 50 * 10
    assert first.seconds(slow) == 6 * first.seconds(modes.MODES["root"])


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
