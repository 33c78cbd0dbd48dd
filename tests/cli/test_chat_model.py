"""The whole verb, with a model: `etude chat RUN` on a run folder, from its arguments to the files it leaves alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli import here
from tests.cli.by_heart import CALLS, run_by_heart
from tests.cli.terminal import CTRL_C, Terminal

from etude.cli.chat import SAMPLE_TASK
from etude.harness import write_sample
from etude.journal import RunPaths

ETUDE = str(Path(sys.executable).with_name("etude"))
DIFF = "-    if total < 20:\n+    if total > 20:\n"
ASKED = "apply this change? [y/N] "
DUMB = "etude: line mode, since this terminal (TERM) cannot position text\n"
INTERRUPTED = "etude: interrupted: your folder has only the changes that you approved\n"
NEXT = "task (empty to leave): "


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    return run_by_heart(tmp_path_factory.mktemp("by-heart") / "run")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_sample(tmp_path / "mine")


@pytest.fixture
def at_terminal(tmp_path: Path, run: RunPaths, scratch: Path) -> Iterator[object]:
    opened = []

    def start(*args: str | Path) -> Terminal:
        opened.append(Terminal([ETUDE, "chat", run.root, *args], tmp_path / "stderr", {"TMPDIR": str(scratch)}))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_on_the_sample_until_the_input_ends(run: RunPaths, scratch: Path) -> None:
    env = {**os.environ, "TMPDIR": str(scratch)}
    command = [ETUDE, "chat", str(run.root)]
    done = subprocess.run(command, input="", env=env, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "etude: line mode, since standard input or output is not a terminal\n")
    lines = done.stdout.splitlines()
    assert lines[:2] == ["a sample repository: check.py, shop.py, travel.py", SAMPLE_TASK]
    assert [line for line in lines if line.startswith("> ")] == [f"> {call}" for call in CALLS]
    assert "FAIL add_cost(18, 9) gave 27, expected 32" in lines
    assert DIFF in done.stdout
    assert lines[-3:] == [ASKED, "left as it was", NEXT]
    assert list(scratch.iterdir()) == []


def test_a_script_has_the_agent_of_a_run_work_in_a_folder(
    run: RunPaths, folder: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {**os.environ, "TMPDIR": str(scratch), "XDG_STATE_HOME": str(folder.parent / "state")}
    words = ["agent", str(run.root), "-p", SAMPLE_TASK, "--folder", str(folder)]
    command = [ETUDE, *words, "--json"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["stop"], result["usage"]["tool_calls"]) == ("finished", len(CALLS))
    assert DIFF in result["diff"]
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    refused = here.etude(*words, "--background")
    assert refused.returncode == 2
    assert "etude: a run folder does not go with --background" in refused.stderr
    assert list(scratch.iterdir()) == []


@pytest.mark.slow
def test_yes_applies_it(at_terminal, folder: Path, scratch: Path) -> None:
    before = contents(folder)
    terminal = at_terminal(SAMPLE_TASK, "--folder", folder, "--stage", "sft")
    terminal.until(ASKED)
    assert contents(folder) == before
    terminal.type("y\n")
    assert "applied to shop.py" in terminal.until(NEXT)
    terminal.type("\n")
    assert terminal.end()[::2] == (0, DUMB)
    assert contents(folder) == before | {"shop.py": before["shop.py"].replace(b"total < 20", b"total > 20")}
    assert list(scratch.iterdir()) == []


@pytest.mark.slow
def test_ctrl_c_while_the_model_is_loaded(at_terminal, scratch: Path) -> None:
    terminal = at_terminal()
    terminal.until("a sample repository")
    terminal.type(CTRL_C)
    code, _, errors = terminal.end()
    assert (code, errors) == (130, DUMB + INTERRUPTED)
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("place", "left", "says"),
    [
        (lambda run: run.root / "stages", None, ["has no finished model of stage rl, continued, sft or base yet"]),
        (lambda run: run.model("sft") / "config.json", None, ["has no config.json"]),
        (lambda run: run.tokenizer, None, ["{place}"]),
        (lambda run: run.recipe, 'name = "x"\nseed = "one"\n', ["seed: should be a valid integer, found 'one'"]),
        (lambda run: run.lineage, None, ["{place}", "compute", "restore"]),
    ],
    ids=["models", "config", "tokenizer", "recipe", "lineage"],
)
def test_a_damaged_run_is_refused_in_one_line(
    run: RunPaths,
    tmp_path: Path,
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: Callable[[RunPaths], Path],
    left: str | None,
    says: list[str],
) -> None:
    damaged = RunPaths(shutil.copytree(run.root, tmp_path / "damaged"))
    file = place(damaged)
    shutil.rmtree(file) if file.is_dir() else file.unlink()
    if left is not None:
        file.write_text(left)
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    done = here.etude("chat", damaged.root)
    assert done.returncode == 2
    told = done.stderr.removeprefix("etude: line mode, since standard input or output is not a terminal\n")
    assert told.count("\n") == 1, done.stderr
    for words in says:
        assert words.format(place=file) in told
    assert list(scratch.iterdir()) == []
