"""A box looks like a person's machine, but for differences that are listed with their reason."""

from __future__ import annotations

import subprocess

from hypothesis import given
from hypothesis import strategies as st
from tests.sandbox.as_nobody import for_root, run_as_nobody

from etude.sandbox.fidelity import Difference, Tell, compare, fidelity, load_tells, parse, report, script

MOST_DIFFERENCES = 16


def test_no_difference_is_unexplained() -> None:
    _, differences = fidelity()
    assert [difference for difference in differences if not difference.tell.differs] == []
    assert len(differences) <= MOST_DIFFERENCES


@for_root
def test_no_difference_is_unexplained_for_an_ordinary_user() -> None:
    program = "from etude.cli.host_checks import fidelity_command; raise SystemExit(fidelity_command())"
    said = run_as_nobody(["-c", program], [], timeout=60)
    assert said.returncode == 0, said.stdout + said.stderr


def test_tells_are_many_and_their_reasons_short() -> None:
    tells = load_tells()
    assert len(tells) >= 40
    assert sum(bool(tell.differs) for tell in tells) <= MOST_DIFFERENCES
    assert all(len(tell.differs) < 140 for tell in tells)


def test_a_difference_counts_unless_the_box_is_as_at_a_persons() -> None:
    tells = [Tell("a", ""), Tell("b", "", person="x"), Tell("c", "", differs="because"), Tell("d", "")]
    box, login = {"a": "1", "b": "x", "c": "1", "d": "1"}, {"a": "2", "b": "y", "c": "2", "d": "1"}
    found = compare(tells, box, login)
    assert [difference.tell.name for difference in found] == ["a", "c"]
    assert report(tells, found).splitlines()[-1] == "4 tells, 2 answered differently, 1 of them unexplained"
    assert "UNEXPLAINED" in report(tells, [Difference(tells[0], "", "2")])


words = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8)


@given(st.dictionaries(words.map(lambda word: f"t{word}"), words, min_size=1, max_size=5))
def test_answers_come_back_from_a_real_shell(answers: dict[str, str]) -> None:
    tells = [Tell(name, f"echo {answer}; exit 3") for name, answer in answers.items()]
    said = subprocess.run(["/bin/sh", "-c", script(tells)], capture_output=True, text=True, check=True).stdout
    assert parse(said) == answers
    assert parse(f"noise\r\n{said}noise".replace("\n", "\r\n")) == answers
