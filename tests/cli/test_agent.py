"""etude agent: any endpoint, one request, a change that scripts can use, and a session that goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.cli import here
from tests.harness import parts
from tests.harness.chat_server import completion
from tests.harness.parts import SAMPLE

ETUDE = str(Path(sys.executable).with_name("etude"))
EDIT = ("replace", {"path": "calc.py", "old": "min(a, b)", "new": "max(a, b)"})
MENDING = (
    completion(calls=[("bash", {"command": "python check.py"})]),
    completion(text="I see", calls=[EDIT]),
    completion(calls=[("bash", {"command": "python check.py"})]),
    completion(text="It is mended."),
)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return parts.repository(tmp_path / "repository")


def etude(
    repository: Path, answers: Sequence[Any], *words: str, code: int = 0, process: bool = False
) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    with here.serving(answers) as server:
        command = ["agent", "--endpoint", server.url, "--model", "any", "--folder", str(repository)]
        command += ["--sessions", str(repository.parent / "sessions"), *words]
        if process:
            done = subprocess.run([ETUDE, *command], capture_output=True, text=True, timeout=120)
        else:
            done = here.etude(*command)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done, server.requests


def test_a_script_gets_the_change_and_keeps_it_when_it_likes(repository: Path) -> None:
    done, requests = etude(repository, MENDING, "-p", "make check pass", "--json", process=True)
    result = json.loads(done.stdout)
    assert (result["stop"], result["text"], result["applied"]) == ("replied", "It is mended.", [])
    assert "+    return max(a, b)" in result["diff"]
    assert (result["usage"]["turns"], result["usage"]["invalid_calls"]) == (4, 0)
    assert {tool["function"]["name"] for tool in requests[0]["tools"]} >= {"bash", "replace", "patch", "job", "todo"}
    assert "FAIL larger" in requests[1]["messages"][-1]["content"]
    assert requests[3]["messages"][-1]["content"] == "ok"
    assert (repository / "calc.py").read_bytes() == SAMPLE["calc.py"], "nothing is written before --apply"
    applied, _ = etude(repository, (), "--resume", "last", "--apply")
    assert "applied to calc.py" in applied.stderr
    assert b"max(a, b)" in (repository / "calc.py").read_bytes()


def test_out_of_turns_and_a_dead_endpoint_are_told_by_the_exit_code(repository: Path) -> None:
    reading = [completion(calls=[("list", {})])] * 2
    done, _ = etude(repository, reading, "-p", "look", "--turns", "2", "--no-shell", code=1)
    assert "(out of turns, 2 turns)" in done.stderr
    assert "> list {}" in done.stderr
    command = ["agent", "-p", "x", "--endpoint", "http://127.0.0.1:9/v1", "--no-shell", "--json"]
    command += ["--sessions", str(repository.parent / "s"), "--folder", str(repository)]
    dead = here.etude(*command)
    assert dead.returncode == 1
    assert json.loads(dead.stdout)["stop"] == "error"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "nothing to do"),
        (("-p", "x", "--folder", "/nowhere"), "/nowhere is not a folder"),
        (("-p", "x", "--resume", "last"), "has no session of"),
        (("-p", "x", "--resume", "20200101-000000-abcdef"), "is not a session"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    done = here.etude("agent", "--sessions", tmp_path / "sessions", "--folder", tmp_path, *words)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().split("\n")) == 1
