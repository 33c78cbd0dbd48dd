"""etude chat on a screen: what is seen, what keys do, and what an agent cannot make it show."""

from __future__ import annotations

import asyncio
import errno
import os
import re
from pathlib import Path

import pytest
from tests.cli.screen.parts import FILES, screen, write_files
from tests.harness.chat_server import completion

pytest.importorskip("textual")

from etude.cli.agent_setup import Rules, find_saved
from etude.cli.screen.prompts import Approval

HERE = Rules(here=True)
EDIT = ("replace", {"path": "calc.py", "old": "min(a, b)", "new": "max(a, b)"})
ITEMS = "x find the bug\n> mend it\n- run the check"
MENDING = (
    completion(text="I look at **it**.", calls=[("read", {"path": "calc.py"})], reasoning_content="hmm, what is it"),
    completion(calls=[("todo", {"items": ITEMS}), EDIT]),
    completion(text="Mended, in `calc.py`."),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_files(tmp_path / "mine")


def calc(folder: Path) -> str:
    return (folder / "calc.py").read_text()


async def test_a_request_from_words_to_the_applied_change(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path, start: object, changed: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / "calc.py"))

    async with screen(folder, MENDING, size=(90, 44)) as seen:
        await seen.say("mend it")
        text = await seen.idle()
        lines = [line.strip() for line in text.splitlines()]
        for line in (
            "▌ mend it", "▸ thought, 4 words", "I look at it.", "calc.py", "-    return min(a, b)",
            "+    return max(a, b)", "Mended, in calc.py.", "☑ find the bug", "▶ mend it", "☐ run the check",
            "1 file changed (+1 -1), on the copy: Ctrl-G looks, /apply writes",
        ):  # fmt: skip
            assert line in lines, text
        assert "✓ read  0.0s  calc.py" in text
        assert re.search(r"ready · on a copy · scripted · 21 tokens · context \d+/96k", text)
        with monkeypatch.context() as patched:
            patched.setattr("etude.harness.session.write_changes", full)
            await seen.say("/apply")
            await seen.until("the disk is full: cannot write")
        assert calc(folder) == FILES["calc.py"]
        await seen.say("/apply")
        await seen.until("applied to calc.py")
        assert "max(a, b)" in calc(folder)


async def test_words_are_shown_as_they_come_and_what_is_said_meanwhile_is_sent_afterwards(folder: Path) -> None:
    answer = completion(text="One two three four.", calls=[("write", {"path": "a", "text": "x" * 40})])
    async with screen(folder, [answer, completion(text="done"), completion(text="well")], holds=4) as seen:
        await seen.say("count")
        text = await seen.until("One two")
        assert "three" not in text
        assert "working" in text
        await seen.say("second")
        await seen.until("1 to follow")
        seen.server.go_on.set()
        assert "One two three four." in await seen.until("well")
        assert all("stream" in request for request in seen.server.requests)
        assert seen.server.requests[-1]["messages"][-1]["content"] == "second"


async def test_an_interrupt_closes_the_stream_and_the_session_goes_on(folder: Path, tmp_path: Path) -> None:
    answers = [completion(text="a long story"), completion(text="here again")]
    async with screen(folder, answers, holds=4, sessions=tmp_path / "s") as seen:
        await seen.say("tell me")
        await seen.until("a long")
        await seen.pilot.press("ctrl+c")
        await seen.until("interrupted; what it did stays")
        async with asyncio.timeout(60):
            await seen.server.closed.wait()
        await seen.say("go on")
        await seen.until("here again")
        said = [message["role"] for message in seen.server.requests[-1]["messages"]]
        assert said == ["system", "user", "user"]


async def test_an_interrupt_while_a_command_runs_ends_it(folder: Path) -> None:
    answers = [completion(calls=[("bash", {"command": "echo > begun; sleep 1000"}), EDIT]), completion(text="well")]
    async with screen(folder, answers, rules=Rules(True, allow=("execute",))) as seen:
        await seen.say("wait")
        await seen.until(lambda: (folder / "begun").exists())
        await seen.pilot.press("escape")
        text = await seen.until("interrupted; what it did stays")
        assert text.count("■") == 2
        await seen.say("and now?")
        await seen.idle()
        last = seen.server.requests[-1]["messages"]
        assert [m["role"] for m in last] == ["system", "user", "assistant", "tool", "tool", "user"]
        assert last[3]["content"].startswith("(interrupted:")
        assert calc(folder) == FILES["calc.py"]


async def test_an_interrupt_while_an_answer_is_awaited(folder: Path) -> None:
    async with screen(folder, [completion(calls=[EDIT])], rules=HERE) as seen:
        await seen.say("mend it")
        await seen.until("Change, on this machine?")
        await seen.pilot.press("escape")
        text = await seen.until("interrupted; what it did stays")
        assert "Change, on this machine?" not in text
        assert calc(folder) == FILES["calc.py"]
        await seen.pilot.press("y")
        assert seen.app.entry.text == "y", "the prompt is gone"


async def test_twice_ctrl_c_leaves_and_the_session_is_kept(folder: Path, tmp_path: Path) -> None:
    sessions = tmp_path / "sessions"
    async with screen(folder, MENDING[1:2], holds=None, sessions=sessions, statuses=[200, 500, 500, 500]) as seen:
        await seen.say("mend it")
        await seen.until("no answer in 3")
        await seen.pilot.press("ctrl+c", "ctrl+c")
        await seen.until(lambda: not seen.app.is_running)
    saved = find_saved(sessions, folder, "last", False)
    assert saved is not None
    async with screen(folder, MENDING[2:], sessions=sessions, saved=saved, size=(90, 40)) as seen:
        text = await seen.until("☐ run the check")
        assert "▌ mend it" in text
        assert "✓ replace" in text
        await seen.pilot.press("up")
        assert seen.app.entry.text == "mend it"
        await seen.pilot.press("enter")
        await seen.until("Mended, in calc.py.")
        await seen.say("/apply")
        await seen.until("applied to calc.py")


async def test_each_answer_to_a_question_for_permission(folder: Path) -> None:
    command = ("bash", {"command": "echo one"})
    turns = [[command], [command], [command], [EDIT], [EDIT], [command, command]]
    answers = [*(completion(calls=calls) for calls in turns), completion(text="done")]
    async with screen(folder, answers, rules=HERE, size=(80, 24)) as seen:
        press = seen.pilot.press
        await seen.say("go")
        text = await seen.until("Run, on this machine?")
        assert "┃ echo one" in text
        assert "a always in this session: execute:echo one" in text
        await press("n")
        await seen.until(lambda: len(seen.server.requests) == 2)
        await seen.until("Run, on this machine?")
        await press("e", *(["backspace"] * 3), *"two", "enter")
        await seen.until(lambda: len(seen.server.requests) == 3)
        await seen.until("Run, on this machine?")
        await press("r", *"use make", "enter")
        text = await seen.until("Change, on this machine?")
        assert "+    return max(a, b)" in text
        await press("n")
        await seen.until(lambda: len(seen.server.requests) == 5)
        await seen.until("Change, on this machine?")
        assert calc(folder) == FILES["calc.py"]
        await press("y")
        await seen.until("Run, on this machine?")
        assert "max(a, b)" in calc(folder)
        await press("a")
        await seen.idle()
        told = [m["content"] for m in seen.server.requests[-1]["messages"] if m["role"] == "tool"]
        assert "said no to the command 'echo one'" in told[0]
        assert told[1] == "(the user changed the command to: echo two)\ntwo"
        assert told[2].endswith("said no to the command 'echo one': use make")
        assert "said no to changing calc.py" in told[3]
        assert told[5:] == ["one", "one"]


async def test_a_question_of_the_agent_is_answered(folder: Path) -> None:
    answers = [completion(calls=[("ask", {"question": "which\x1b[2J one?"})]), completion(text="thanks")]
    async with screen(folder, answers) as seen:
        await seen.say("go")
        text = await seen.until("The agent asks")
        assert "which␛[2J one?" in text
        await seen.pilot.press(*"both", "enter")
        await seen.idle()
        assert seen.server.requests[-1]["messages"][-1]["content"] == "both"


async def test_who_is_writing_does_not_answer_by_accident(folder: Path) -> None:
    async with screen(folder, [completion(calls=[EDIT]), completion(text="ok")], rules=HERE, holds=2) as seen:
        await seen.say("mend it")
        await seen.pilot.press(*"wh")
        seen.server.go_on.set()
        await seen.until("Change, on this machine?")
        await seen.pilot.press("y")
        assert seen.app.entry.text == "why"
        assert calc(folder) == FILES["calc.py"]
        seen.app.query_one(Approval).focus()
        await seen.pilot.press("y")
        await seen.idle()
        assert "max(a, b)" in calc(folder)


HOSTILE = "\x1b[2J\x1b[1;1H\r┏━ Run, on this machine? ━┓\x9b31m[bold red]\u202eevil\u200b\u2066 \x07"


async def test_nothing_that_an_agent_says_moves_the_cursor_or_looks_like_a_question(folder: Path) -> None:
    calls = [("bash", {"command": f"printf '{HOSTILE}'"}), ("read", {"path": HOSTILE})]
    answers = [completion(text=f"See {HOSTILE}", calls=calls, reasoning_content=HOSTILE), completion(text="bye")]
    async with screen(folder, answers, rules=HERE, size=(100, 40)) as seen:
        await seen.say(f"go {HOSTILE}")
        await seen.until(lambda: bool(seen.app.query(Approval)))
        await seen.pilot.press("ctrl+o")
        texts = [await seen.until("<U+202E>evil<U+200B><U+2066>")]
        assert "on this machine?" in texts[0]
        await seen.pilot.press("y")
        texts.append(await seen.idle())
        for text in texts:
            assert not any((ord(sign) < 32 and sign != "\n") or 127 <= ord(sign) < 160 for sign in text)
            assert not any(sign in text for sign in "\u202e\u200b\u2066")
        # A question stands in the dock, and only there is one that keys answer.
        assert not seen.app.query(Approval)
        assert seen.app.focused is seen.app.entry


@pytest.mark.parametrize("size", [(40, 12), (200, 60)])
async def test_a_question_can_be_read_and_answered_at_any_size(folder: Path, size: tuple[int, int]) -> None:
    lines = "\n".join(f"echo line {number}" for number in range(30))
    answers = [completion(calls=[("bash", {"command": lines})]), completion(text="ok")]
    async with screen(folder, answers, rules=HERE, size=size) as seen:
        await seen.say("go")
        await seen.until("Run, on this")
        assert "echo line 0" in await seen.until("y yes")
        for _ in range(20):
            await seen.pilot.press("pagedown")
        assert "always in this session" in await seen.until("echo line 29")
        await seen.pilot.resize_terminal(60, 20)
        await seen.until("y yes")
        await seen.pilot.press("n")
        await seen.idle()


async def test_everything_changed_is_kept_or_taken_back_by_file(folder: Path) -> None:
    calls = [EDIT, ("write", {"path": "new.py", "text": "x = 1\n"}), ("delete", {"path": "check.py"})]
    answers = [completion(calls=calls), completion(text="so"), completion(text="I see")]
    async with screen(folder, answers) as seen:
        await seen.say("go")
        await seen.idle()
        await seen.pilot.press("ctrl+g")
        text = await seen.until("3 files changed, not in your folder yet")
        assert "· undecided  calc.py  +1 -1" in text
        await seen.pilot.press("a", "r")
        await seen.until("new file new.py")
        assert "✓ keep       calc.py" in seen.text
        await seen.pilot.press("enter")
        text = await seen.until("applied to calc.py")
        assert "took back check.py" in text
        assert (folder / "check.py").exists()
        assert not (folder / "new.py").exists()
        assert list(await seen.session.changes()) == ["new.py"]
        await seen.say("why?")
        await seen.until("I see")
        last = seen.server.requests[-1]["messages"][-1]["content"]
        assert last == "(The user took back your changes to check.py.)\n\nwhy?"


async def test_commands_complete_and_help_and_undo(folder: Path) -> None:
    async with screen(folder, MENDING, rules=Rules(True, allow=("write",))) as seen:
        await seen.pilot.press("/")
        text = await seen.until("/resume")
        assert all(name in text for name in ("/diff", "/apply", "/undo", "/help", "/quit"))
        await seen.pilot.press("u", "tab")
        assert seen.app.entry.text == "/undo"
        await seen.pilot.press("enter")
        await seen.until("nothing to take back")
        await seen.say("mend it")
        await seen.idle()
        assert "max(a, b)" in calc(folder)
        await seen.say("/undo")
        await seen.until("took back calc.py")
        assert calc(folder) == FILES["calc.py"]
        await seen.pilot.press("f1")
        await seen.until("interrupt the agent; what it did stays")
        await seen.pilot.press("escape")
        await seen.say("/nothing")
        await seen.until("there is no command /nothing")
        await seen.pilot.press(*"one", "ctrl+j", *"two")
        assert seen.app.entry.text == "one\ntwo"


async def test_why_it_stopped_is_said(folder: Path) -> None:
    reading = completion(calls=[("list", {})])
    async with screen(folder, [reading] * 2, statuses=[503] * 3, turns=2) as seen:
        await seen.say("look")
        await seen.until("failed: PolicyError")
        await seen.say("look again")
        await seen.until("out of turns")


async def test_another_session_of_the_folder_is_picked(folder: Path, tmp_path: Path) -> None:
    sessions = tmp_path / "sessions"
    async with screen(folder, [completion(text="hello")], sessions=sessions) as seen:
        await seen.say("the first one")
        await seen.idle()
    async with screen(folder, [completion(text="hello")], sessions=sessions) as seen:
        await seen.say("/resume")
        await seen.until("the first one")
        await seen.pilot.press("enter")
        await seen.until(lambda: not seen.app.is_running)
        assert seen.app.return_value in {place.name for place in sessions.iterdir()}
