"""scripts/setup.sh where something is missing: one line that names it and how to get it, code 2, nothing made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "setup.sh"
TOOLS = ("sh", "sed", "touch")

PYTHON = """#!/bin/sh
# A Python of version {version}; its venv module is there or not.
case "$*" in
  *version_info*) exit {too_old} ;;
  *"import venv, ensurepip"*) exit {no_venv} ;;
  --version) echo "Python {version}" ;;
  *) echo "unexpected: $*" >&2; exit 99 ;;
esac
"""


def executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A PATH of its own: no python, no apt-get, and nobody is root."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in TOOLS:
        found = next(Path(place, name) for place in os.defpath.split(":") if place and Path(place, name).exists())
        (folder / name).symlink_to(found)
    executable(folder / "id", "#!/bin/sh\necho 1000\n")
    return folder


def run_setup(tools: Path, python: str, place: Path) -> subprocess.CompletedProcess[str]:
    env = {"PATH": str(tools), "PYTHON": python}
    return subprocess.run([tools / "sh", SCRIPT], cwd=place, env=env, capture_output=True, text=True, check=False)


def setup_says(tools: Path, python: str) -> str:
    """The one line, without its prefix."""
    place = tools.parent / "project"
    place.mkdir(exist_ok=True)
    done = run_setup(tools, python, place)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("setup: ")
    assert not list(place.iterdir()), "a refusal leaves nothing behind"
    return done.stderr.removeprefix("setup: ").strip()


def fake_python(tools: Path, version: str = "3.11.2", *, too_old: bool = False, no_venv: bool = False) -> str:
    text = PYTHON.format(version=version, too_old=int(too_old), no_venv=int(no_venv))
    return str(executable(tools.parent / "python", text))


def test_a_python_that_is_missing_or_too_old(tools: Path) -> None:
    assert setup_says(tools, "python3") == "python3 is missing; run: apt-get install python3 python3-venv"
    assert setup_says(tools, "/nowhere/python3.12").startswith("/nowhere/python3.12 is missing; ")
    line = setup_says(tools, fake_python(tools, "3.9.2", too_old=True))
    assert line == "Python 3.11 or newer is needed, Python 3.9.2 found; set PYTHON=/path/to/python3.11"


@pytest.mark.parametrize("there", [(), ("apt-get",), ("root",)])
def test_a_python_without_venv(tools: Path, there: tuple[str, ...]) -> None:
    """Who is not root is told although there is apt-get, and root although there is none."""
    if "apt-get" in there:
        executable(tools / "apt-get", "#!/bin/sh\nexit 1\n")
    if "root" in there:
        executable(tools / "id", "#!/bin/sh\necho 0\n")
    line = setup_says(tools, fake_python(tools, no_venv=True))
    assert line == "this Python has no venv module; run: sudo apt-get install python3-venv"


def test_a_real_python_passes_both_questions(tools: Path) -> None:
    """So that the fakes above stand for answers that a Python really gives."""
    script = f'#!/bin/sh\n[ "$1" = -c ] && exec {sys.executable} "$@"\necho "asked for: $*"\nexit 7\n'
    python = executable(tools.parent / "python", script)
    done = run_setup(tools, str(python), tools.parent)
    assert (done.returncode, done.stdout, done.stderr) == (7, "asked for: -m venv .venv\n", "")
