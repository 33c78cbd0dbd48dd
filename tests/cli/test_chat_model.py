"""The whole verb, with a model: `etude chat RUN` on a run folder, from its arguments to the files it leaves alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
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


def test_a_script_has_the_agent_of_a_run_work_in_a_folder(run: RunPaths, folder: Path, scratch: Path) -> None:
    env = {**os.environ, "TMPDIR": str(scratch), "XDG_STATE_HOME": str(folder.parent / "state")}

    def agent(*words: str) -> subprocess.CompletedProcess[str]:
        command = [ETUDE, "agent", str(run.root), "-p", SAMPLE_TASK, "--folder", str(folder), *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)

    done = agent("--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["stop"], result["usage"]["tool_calls"]) == ("finished", len(CALLS))
    assert DIFF in result["diff"]
    refused = agent("--background")
    assert refused.returncode == 2
    assert "etude: a run folder does not go with --background" in refused.stderr
    assert list(scratch.iterdir()) == []


@pytest.mark.slow
def test_no_then_ctrl_c_at_the_next_question(at_terminal, folder: Path, scratch: Path) -> None:
    before = contents(folder)
    terminal = at_terminal(SAMPLE_TASK, "--folder", folder)
    assert "+    if total > 20:" in terminal.until(ASKED)
    terminal.type("n\n")
    terminal.until(NEXT)
    assert contents(folder) == before
    terminal.type(CTRL_C)
    code, _, errors = terminal.end()
    assert (code, errors) == (130, DUMB + INTERRUPTED)
    assert contents(folder) == before
    assert list(scratch.iterdir()) == []


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


def refusal(scratch: Path, *args: str | Path) -> str:
    """The one line of a chat that does not begin; one may stand before it that says why there is no screen."""
    env = {**os.environ, "TMPDIR": str(scratch)}
    command = [ETUDE, "chat", *args]
    done = subprocess.run(command, input="", env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2, done.stderr
    told = done.stderr.removeprefix("etude: line mode, since standard input or output is not a terminal\n")
    assert told.count("\n") == 1, done.stderr
    assert list(scratch.iterdir()) == []
    return told.removeprefix("etude: ").strip()


def test_what_is_no_run_folder(tmp_path: Path, scratch: Path, folder: Path) -> None:
    for place in (tmp_path / "nowhere", folder):
        line = f"{place} is not a run folder: it has no recipe.toml; train one with `etude run`"
        assert refusal(scratch, place) == line


def test_stages_and_folders_that_are_not_there(run: RunPaths, tmp_path: Path, scratch: Path) -> None:
    assert refusal(scratch, run.root, "--stage", "mtp") == "there is no stage 'mtp': expected one of rl, continued, sft"
    assert refusal(scratch, run.root, "--stage", "rl") == f"{run.root} has no finished model of stage rl yet"
    nowhere = tmp_path / "nowhere"
    assert refusal(scratch, run.root, "fix it", "--folder", nowhere) == f"{nowhere} is not a folder"


@pytest.fixture
def damaged(run: RunPaths, tmp_path: Path) -> RunPaths:
    """A copy to take something away from."""
    shutil.copytree(run.root, tmp_path / "damaged")
    return RunPaths(tmp_path / "damaged")


def test_a_run_without_a_model(damaged: RunPaths, scratch: Path) -> None:
    shutil.rmtree(damaged.root / "stages")
    assert refusal(scratch, damaged.root) == f"{damaged.root} has no finished model of stage rl, continued or sft yet"


@pytest.mark.parametrize("left", [None, {"stages": {}, "compute": {}}, {"stages": {}}, {"stages": {}, "compute": 3}])
def test_a_lineage_that_does_not_say_how_to_compute(damaged: RunPaths, scratch: Path, left: object) -> None:
    damaged.lineage.unlink()
    if left is not None:
        damaged.lineage.write_text(json.dumps(left))
    line = refusal(scratch, damaged.root)
    assert line.startswith(str(damaged.lineage))
    assert "compute" in line or "damaged" in line
    assert "restore" in line


def test_a_recipe_that_does_not_load(damaged: RunPaths, scratch: Path) -> None:
    damaged.recipe.write_text('name = "x"\nseed = "one"\n')
    assert "seed: should be a valid integer, found 'one'" in refusal(scratch, damaged.root)


@pytest.mark.slow
def test_a_model_or_tokenizer_that_does_not_load(damaged: RunPaths, scratch: Path) -> None:
    (damaged.model("sft") / "config.json").unlink()
    assert "has no config.json" in refusal(scratch, damaged.root)
    damaged.tokenizer.unlink()
    assert str(damaged.tokenizer) in refusal(scratch, damaged.root)
