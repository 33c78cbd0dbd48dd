"""A box looks like a person's machine, but for differences that are listed with their reason."""

from __future__ import annotations

import subprocess

from hypothesis import given
from hypothesis import strategies as st
from tests.sandbox.as_nobody import for_root, run_as_nobody

from etude.sandbox.fidelity import Difference, FidelityCheck, compare, fidelity, parse, report, script

MOST_DIFFERENCES = 16


def test_no_difference_is_unexplained() -> None:
    _, differences = fidelity()
    assert [difference for difference in differences if not difference.check.differs] == []
    assert len(differences) <= MOST_DIFFERENCES


@for_root
def test_no_difference_is_unexplained_for_an_ordinary_user() -> None:
    program = "from etude.cli.host_checks import fidelity_command; raise SystemExit(fidelity_command())"
    said = run_as_nobody(["-c", program], [], timeout=60)
    assert said.returncode == 0, said.stdout + said.stderr


def test_a_difference_counts_unless_the_box_is_as_at_a_persons() -> None:
    checks = [
        FidelityCheck("a", ""),
        FidelityCheck("b", "", person="x"),
        FidelityCheck("c", "", differs="because"),
        FidelityCheck("d", ""),
    ]
    box, login = {"a": "1", "b": "x", "c": "1", "d": "1"}, {"a": "2", "b": "y", "c": "2", "d": "1"}
    found = compare(checks, box, login)
    assert [difference.check.name for difference in found] == ["a", "c"]
    assert report(checks, found).splitlines()[-1] == "4 checks, 2 answered differently, 1 of them unexplained"
    assert "UNEXPLAINED" in report(checks, [Difference(checks[0], "", "2")])


words = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8)


@given(st.dictionaries(words.map(lambda word: f"t{word}"), words, min_size=1, max_size=5))
def test_answers_come_back_from_a_real_shell(answers: dict[str, str]) -> None:
    checks = [FidelityCheck(name, f"echo {answer}; exit 3") for name, answer in answers.items()]
    said = subprocess.run(["/bin/sh", "-c", script(checks)], capture_output=True, text=True, check=True).stdout
    assert parse(said) == answers
    assert parse(f"noise\r\n{said}noise".replace("\n", "\r\n")) == answers
