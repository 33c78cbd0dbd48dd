"""etude chat at a terminal, its turns from a script: what is shown, what is asked, and what reaches the folder when."""

from __future__ import annotations

import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.terminal import CTRL_C, END_OF_INPUT, Terminal

from etude.harness import write_sample

SCRIPT = Path(__file__).with_name("scripted_chat.py")
MEND = ["> shell python check.py", "> edit shop.py 5 if total > 20:", "> finish"]
ASKED = "apply this change? [y/N] "
NEXT = "task (empty to leave): "

Chat = Callable[..., Terminal]


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): (path.stat().st_mode, path.read_bytes()) for path in files}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_sample(tmp_path / "sample")


@pytest.fixture
def chat(tmp_path: Path, folder: Path, scratch: Path) -> Iterator[Chat]:
    opened = []

    def start(*steps: str, yes: bool = False) -> Terminal:
        command = [sys.executable, SCRIPT, folder, "fix it", "yes" if yes else "ask", *steps]
        opened.append(Terminal(command, tmp_path / "stderr", {"TMPDIR": str(scratch)}))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


def test_no_leaves_the_folder_as_it_was_and_yes_applies_the_diff(chat: Chat, folder: Path, scratch: Path) -> None:
    before = tree(folder)
    terminal = chat(*MEND, "> list", "done")
    shown = terminal.until(ASKED)
    for line in (
        "> shell python check.py",
        "FAIL add_cost(18, 9) gave 27, expected 32",
        "> edit shop.py 5",
        "(done, 3 turns)",
    ):
        assert line in shown
    assert [line.rstrip() for line in shown.splitlines() if line[:1] in "-+"] == [
        "--- a/shop.py",
        "+++ b/shop.py",
        "-    if total < 20:",
        "+    if total > 20:",
    ]
    assert tree(folder) == before, "nothing reaches the folder before the answer"
    terminal.type("n\n")
    assert "left as it was" in terminal.until(NEXT)
    assert tree(folder) == before
    # The agent still has its change: asked about again, and applied now.
    terminal.type("and now?\n")
    terminal.until(ASKED)
    terminal.type("y\n")
    assert "applied to shop.py" in terminal.until(NEXT)
    mode, text = before["shop.py"]
    assert tree(folder) == before | {"shop.py": (mode, text.replace(b"total < 20", b"total > 20"))}
    terminal.type("\n")
    code, _, errors = terminal.end()
    assert (code, errors) == (0, "")
    assert list(scratch.iterdir()) == []


def test_yes_asks_nothing_and_ends(chat: Chat, folder: Path, scratch: Path) -> None:
    terminal = chat(*MEND, yes=True)
    code, shown, errors = terminal.end()
    assert (code, errors) == (0, "")
    assert "+    if total > 20:" in shown
    assert "applied to shop.py" in shown
    assert ASKED not in shown
    assert NEXT not in shown
    assert b"total > 20" in (folder / "shop.py").read_bytes()
    assert list(scratch.iterdir()) == []


def test_what_the_user_changed_meanwhile_is_not_written_over(chat: Chat, folder: Path, scratch: Path) -> None:
    terminal = chat(*MEND)
    terminal.until(ASKED)
    (folder / "shop.py").write_text("mine\n")
    mine = tree(folder)
    terminal.type("y\n")
    code, _, errors = terminal.end()
    assert code == 2
    assert errors == (
        "etude: changed outside the session, so nothing was written: shop.py; start again from the current files\n"
    )
    assert tree(folder) == mine
    assert list(scratch.iterdir()) == []


def test_nothing_on_the_screen_hides_a_part_of_the_change(chat: Chat, folder: Path) -> None:
    """A long line is wrapped rather than cut, control characters do not reach the terminal, deletions are shown."""
    before, long = tree(folder), "x" * 300 + "END"
    note = f"printf '{long}\\n\\033[2K\\rharmless\\n' > note.txt; cat note.txt"
    others = "rm travel.py; printf '\\0' > logo.png; head -c 1500000 /dev/zero > huge"
    terminal = chat(f"> shell {note}; {others}", "done")
    shown = terminal.until(ASKED)
    assert shown.replace("\n", "").replace(" ", "").count("xEND") >= 2, "once as output, once in the diff"
    assert "\x1b[2K" not in shown
    assert "+␛[2K␍harmless" in shown
    assert "+++ /dev/null" in shown
    assert "Binary files /dev/null and b/logo.png differ" in shown
    assert "huge became too large to be read: it is left out" in shown
    assert tree(folder) == before
    terminal.type("y\n")
    assert "applied to logo.png, note.txt, travel.py" in terminal.until(NEXT)
    assert tree(folder).keys() == before.keys() - {"travel.py"} | {"logo.png", "note.txt"}
    assert (folder / "note.txt").read_bytes() == f"{long}\n\033[2K\rharmless\n".encode(), "what is written is exact"
    terminal.type(END_OF_INPUT)
    assert terminal.end()[0] == 0


@pytest.mark.parametrize("moment", ["the agent works", "a task is asked for", "an answer is asked for", "SIGTERM"])
def test_ctrl_c_ends_it_at_any_moment(chat: Chat, folder: Path, scratch: Path, moment: str) -> None:
    before = tree(folder)
    mark = f"marked-{uuid.uuid4().hex}"
    if moment == "the agent works":
        terminal = chat("> edit shop.py 5 if total > 20:", f"> shell sleep 1000 # {mark}")
        terminal.until("> edit shop.py")
        wait_for(lambda: bool(processes(mark)))
    elif moment == "a task is asked for":
        terminal = chat("nothing")
        assert "nothing was changed" in terminal.until(NEXT)
    else:
        terminal = chat(*MEND)
        terminal.until(ASKED)
    begun = time.monotonic()
    terminal.process.send_signal(signal.SIGTERM) if moment == "SIGTERM" else terminal.type(CTRL_C)
    code, shown, errors = terminal.end()
    assert (code, errors) == (130, "etude: interrupted\n"), shown
    assert time.monotonic() - begun < 60
    assert tree(folder) == before
    assert list(scratch.iterdir()) == []
    assert processes(mark) == []


def processes(mark: str) -> list[str]:
    """Command lines that bear the mark, apart from the script that was given it."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes().decode(errors="replace") if entry.name.isdecimal() else ""
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if mark in line and SCRIPT.name not in line:
            found.append(line)
    return found


def wait_for(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)
