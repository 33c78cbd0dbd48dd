"""etude sandbox build: live output beside the image's id, and mistakes as one line with code 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ETUDE = str(Path(sys.executable).with_name("etude"))


def build(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [ETUDE, "sandbox", "build", str(folder), "--store", str(folder.parent / "store"), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def context(tmp_path: Path) -> Path:
    folder = tmp_path / "context"
    folder.mkdir()
    (folder / "Dockerfile").write_text("FROM host AS one\nARG word=none\nRUN echo said $word\nFROM one\nRUN exit 4\n")
    return folder


def test_steps_and_output_are_shown_beside_the_id(context: Path) -> None:
    shown = build(context, "--target", "one", "--arg", "word=hello")
    assert shown.returncode == 0, shown.stderr
    *lines, last = shown.stderr.splitlines()
    assert lines == ["1/3 FROM host AS one", "2/3 ARG word=none", "3/3 RUN echo said $word", "    said hello"]
    assert last.startswith("built in ")
    image = shown.stdout.removesuffix("\n")
    again = build(context, "--target", "one", "--arg", "word=hello")
    assert again.stderr.splitlines()[3] == "    as before"
    assert again.stdout == shown.stdout
    lists = [ETUDE, "sandbox", "images", "list", "--store", str(context.parent / "store")]
    listed = subprocess.run(lists, capture_output=True, text=True, check=True)
    _, row = listed.stdout.splitlines()
    assert row.startswith(image)
    assert row.endswith(f"built from {context}/Dockerfile")
    whole = subprocess.run([*lists, "--all"], capture_output=True, text=True, check=True)
    steps = [line for line in whole.stdout.splitlines() if line.endswith("  a step, a snapshot or single files")]
    assert row in whole.stdout.splitlines()
    assert len(whole.stdout.splitlines()) == 2 + len(steps)
    assert listed.stderr == f"not shown: {len(steps)} of steps, snapshots or single files; --all shows them\n"
    assert (len(steps) > 0, whole.stderr) == (True, "")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "Dockerfile:5: RUN exit 4: exit code 4"),
        (("--target", "two"), "no stage 'two'; there are one, 1"),
        (("--file", "nowhere"), "cannot read the Dockerfile nowhere: No such file or directory"),
        (("--store", "/proc/store"), "/proc/store cannot be a store of images: No such file or directory"),
        (("--arg", "word"), "--arg word: expected NAME=value"),
        (("--egress", "no-such"), "--egress: egress 'no-such'"),
    ],
)
def test_mistakes_are_one_line(context: Path, options: tuple[str, ...], words: str) -> None:
    shown = build(context, *options)
    assert shown.returncode == 2
    assert shown.stdout == ""
    (line,) = [line for line in shown.stderr.splitlines() if line.startswith("etude: ")]
    assert words in line
    assert shown.stderr.endswith(f"{line}\n")


def test_help_teaches() -> None:
    shown = subprocess.run([ETUDE, "sandbox", "build", "--help"], capture_output=True, text=True, check=True)
    assert "  etude sandbox build ." in shown.stdout
