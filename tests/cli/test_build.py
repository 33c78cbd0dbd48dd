"""etude sandbox build: live output beside the image's id, and mistakes as one line with code 2."""

from __future__ import annotations

from pathlib import Path
from subprocess import CompletedProcess

import pytest
from tests.cli.here import etude


def build(folder: Path, *options: str) -> CompletedProcess[str]:
    return etude("sandbox", "build", folder, "--store", folder.parent / "store", *options)


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
    lists = ("sandbox", "images", "list", "--store", context.parent / "store")
    listed = etude(*lists)
    _, row = listed.stdout.splitlines()
    assert row.startswith(image)
    assert row.endswith(f"built from {context}/Dockerfile")
    whole = etude(*lists, "--all")
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
