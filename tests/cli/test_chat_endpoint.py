"""etude chat with an endpoint, line by line, its input no terminal: budgets, consent, and a session that goes on."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.cli import here
from tests.cli.test_agent import EDIT, ETUDE, repository
from tests.harness.chat_server import completion

from etude.cli.wording import count
from etude.harness.sessions import SavedSession, SessionRecord, list_sessions, load_session

__all__ = ["repository"]  # a fixture
LISTING = [completion(calls=[("list", {})])]


def chat(repository: Path, answers: Sequence[Any], *words: str, said: str = "", process: bool = False) -> str:
    """What it printed; it ends with the input, which is a pipe where it is a process."""
    with here.serving(answers) as server:
        command = ["chat", "--endpoint", server.url, "--model", "any", "--folder", str(repository)]
        command += ["--sessions", str(repository.parent / "sessions"), "--plain", "--no-shell", *words]
        if process:
            done = subprocess.run([ETUDE, *command], input=said, capture_output=True, text=True, timeout=120)
        else:
            done = here.etude(*command, given=said)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def kept(repository: Path) -> SavedSession:
    (place,) = list_sessions(repository.parent / "sessions")
    return load_session(place)


@pytest.mark.parametrize(
    ("words", "stop", "turns"),
    [
        (("--turns", "2"), "turns", 2),
        (("--money", "0.001", "--prices", "1000000", "0", "0"), "money", 1),
    ],
)
def test_a_budget_ends_a_request_and_the_next_one_has_its_own(
    repository: Path, words: tuple[str, ...], stop: str, turns: int
) -> None:
    answers = [*LISTING * turns, completion(text="hello")]
    shown = chat(repository, answers, *words, "-p", "look around", said="and now?\n")
    assert f"(out of {stop}, {count(turns, 'turn')})" in shown
    assert "hello" in shown
    session = kept(repository)
    assert (session.requests, session.turns) == (2, turns + 1)
    assert not session.consent


def test_a_change_is_refused_and_the_session_goes_on_with_consent(repository: Path) -> None:
    mending = [completion(calls=[EDIT]), completion(text="mended")]
    shown = chat(repository, mending, "-p", "mend it", said="n\n", process=True)
    assert "+    return max(a, b)" in shown
    assert b"min(a, b)" in (repository / "calc.py").read_bytes()
    again = chat(repository, [completion(text="still here")], "--resume", "last", "--consent", said="are you?\ny\n")
    assert "still here" in again
    assert b"max(a, b)" in (repository / "calc.py").read_bytes()
    session = kept(repository)
    assert session.consent
    assert session.requests == 2
    assert [signal["what"] for signal in session.signals if signal["what"].startswith("edits")] == [
        "edits_rejected",
        "edits_accepted",
    ]


def test_a_no_to_training_stands(repository: Path) -> None:
    chat(repository, [completion(text="hello")], "-p", "who are you?")
    record = SessionRecord.for_signals(kept(repository).folder)
    record.signal("consent", given=False)
    record.close()
    chat(repository, [completion(text="still me")], "--resume", "last", "--consent", said="and now?\n")
    assert not kept(repository).consent
