"""Many agents over one repository, with boxes, as separate commands of a shell; and what a kill leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.cli.agents.playing import playing, replacing
from tests.cli.agents.test_agents import NUMBERS, wait_for
from tests.harness.chat_server import completion

from etude.harness.background import LOCK, find_agent, is_held, lock_holder

pytestmark = pytest.mark.slow

ETUDE = str(Path(sys.executable).with_name("etude"))
SLEEPER = "sleep 86399"


def mending(n: int) -> list[dict[str, object]]:
    look = [completion(calls=[("bash", {"command": f"cat part{n}; echo $$ > pid; test -e /proc/$(cat pid)"})])]
    return [*look, *replacing(f"part{n}", "one", f"agent {n}")]


SCRIPTS = {
    **{f"part {n}": mending(n) for n in range(2)},
    "begin": replacing("shared", "one", "1"),
    "end": replacing("shared", "five", "5"),
    "sleep": [completion(calls=[("bash", {"command": f"echo made > made; {SLEEPER}"})]), completion(text="awake")],
}


class Shell:
    def __init__(self, root: Path, url: str) -> None:
        self.folder, self.sessions, self.url = root / "repository", root / "sessions", url
        self.folder.mkdir()
        for name in ("part0", "part1", "shared"):
            (self.folder / name).write_bytes(NUMBERS)

    def start(self, prompt: str, *words: str) -> str:
        options = ["--endpoint", self.url, "--model", "any", "--folder", str(self.folder), "--background", *words]
        return self.etude("agent", "-p", prompt, *options).stdout.strip()

    def etude(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [ETUDE, *words, "--sessions", str(self.sessions)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    def states(self) -> dict[str, str]:
        listed = json.loads(self.etude("agents", "--json").stdout)
        return {agent["prompts"][0]: agent["state"] for agent in listed}


def test_four_at_once_and_two_in_the_same_file(tmp_path: Path) -> None:
    prompts = [*(f"part {n}" for n in range(2)), "begin", "end"]
    with playing(SCRIPTS) as server:
        shell = Shell(tmp_path, server.url)
        server.held.update(prompts)
        ids = {prompt: shell.start(prompt, "--at-once", "4") for prompt in prompts}
        wait_for(lambda: {prompt for prompt, _ in server.asked} == set(prompts), lambda: str(server.asked), 600)
        assert set(shell.states().values()) == {"running"}, "all of them at the same time"
        server.held.clear()
        for prompt in prompts:
            shell.etude("agents", "follow", ids[prompt][:5])
    assert shell.states() == dict.fromkeys(prompts, "done")
    assert all((shell.folder / f"part{n}").read_bytes() == NUMBERS for n in range(2)), "nothing before apply"

    # Both at the same moment: one after the other gets the folder.
    threads = [threading.Thread(target=shell.etude, args=("agents", "apply", ids[f"part {n}"])) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n in range(2):
        assert (shell.folder / f"part{n}").read_bytes() == NUMBERS.replace(b"one", b"agent %d" % n)

    shell.etude("agents", "apply", ids["begin"])
    refused = shell.etude("agents", "apply", ids["end"], code=2)
    assert refused.stderr.startswith("etude: nothing was written: shared changed meanwhile in other lines")
    assert (shell.folder / "shared").read_bytes() == NUMBERS.replace(b"one", b"1")
    merged = shell.etude("agents", "apply", ids["end"], "--merge")
    assert "+5\n" in merged.stdout
    assert "applied to shared (merged)" in merged.stderr
    assert (shell.folder / "shared").read_bytes() == NUMBERS.replace(b"one", b"1").replace(b"five", b"5")
    assert shell.states() == dict.fromkeys(prompts, "applied")
    assert not list(shell.sessions.glob("*/boxes")), "boxes go with their agents"


def sleepers() -> list[int]:
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            line = (place / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if line.rstrip(b"\0").replace(b"\0", b" ") == SLEEPER.encode():
            found.append(int(place.name))
    return found


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["kill -9", "stop"])
def test_no_box_outlives_its_agent(tmp_path: Path, how: signal.Signals) -> None:
    with playing(SCRIPTS) as server:
        shell = Shell(tmp_path, server.url)
        place = find_agent(shell.sessions, shell.start("sleep"))
        wait_for(lambda: len(sleepers()) == 1, lambda: (place / "log").read_text(), 600)
        if how is signal.SIGKILL:
            os.kill(lock_holder(place / LOCK) or 0, how)
        else:
            shell.etude("agents", "stop", place.name)
        wait_for(lambda: not sleepers() and not is_held(place / LOCK), lambda: f"{sleepers()} sleep on", 600)
        assert shell.states() == {"sleep": "interrupted" if how is signal.SIGKILL else "stopped"}
        shell.etude("agents", "remove", "--force", place.name)
    assert not place.exists()


def test_it_survives_its_terminal(tmp_path: Path) -> None:
    """Started by a shell that leads a session and ends, and asked to hang up."""
    with playing(SCRIPTS) as server:
        shell = Shell(tmp_path, server.url)
        server.held.add("begin")
        words = f"agent -p begin --endpoint {server.url} --model any --folder {shell.folder} --background --no-shell"
        line = f"{ETUDE} {words} --sessions {shell.sessions}; kill -HUP 0"
        subprocess.run(["setsid", "--wait", "sh", "-c", line], capture_output=True, timeout=600)
        wait_for(lambda: bool(server.asked), lambda: "it does not ask", 600)
        server.held.clear()
        wait_for(lambda: shell.states() == {"begin": "done"}, lambda: str(shell.states()), 600)
