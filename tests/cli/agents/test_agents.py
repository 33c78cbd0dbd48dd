"""etude agents: what a person types, from the start to the change in the folder, through kills."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cli.agents.playing import Playing, playing, replacing
from tests.harness.chat_server import completion

from etude.cli.agent import AgentOptions, agent_command
from etude.cli.agent_setup import EndpointOptions, Rules
from etude.cli.agents import start, worker
from etude.cli.agents.deciding import apply_command, reject_command, remove_command, stop_command
from etude.cli.agents.listing import list_command
from etude.cli.agents.showing import follow_command, show_command
from etude.cli.agents.start import resume_command, start_command
from etude.cli.wording import STOPS
from etude.harness import ApplyConflict
from etude.harness.background import LOCK, Queue, agent_folders, find_agent, is_held, lock_holder, read_agent
from etude.harness.sessions import SessionError, load_session
from etude.trace import StopCause

NUMBERS = b"one\ntwo\nthree\nfour\nfive\n"
WORDS = b"begin\nmiddle\nend\n"
READ = completion(calls=[("read", {"path": "numbers"})])
SCRIPTS = {
    "first": replacing("numbers", "one", "1"),
    "last": replacing("numbers", "five", "5"),
    "clash": replacing("numbers", "one", "uno"),
    "twice": [*replacing("numbers", "two", "2"), READ, *replacing("numbers", "three", "3")],
    "again": [
        *replacing("words", "begin", "BEGIN")[:1],
        *replacing("numbers", "one", "uno"),
        READ,
        *replacing("numbers", "eins", "UNO"),
    ],
    "look": [completion(text="All is well.")],
}


def test_every_stop_has_words() -> None:
    assert set(STOPS) == set(StopCause)


class Desk:
    """A folder, an endpoint, and the verbs."""

    def __init__(self, root: Path, server: Playing) -> None:
        self.folder, self.sessions, self.server = root / "repository", root / "sessions", server
        self.folder.mkdir()
        (self.folder / "numbers").write_bytes(NUMBERS)
        (self.folder / "words").write_bytes(WORDS)

    def options(self, prompt: str, resume: str | None = None) -> AgentOptions:
        return AgentOptions(
            prompt=prompt,
            folder=self.folder,
            endpoint=EndpointOptions(self.server.url, "any", "A_KEY", 8000, 20),
            shell=False,
            apply=False,
            as_json=False,
            sessions=self.sessions,
            resume=resume,
        )

    def start(self, prompt: str, name: str = "", tries: int = 1, at_once: int = 4) -> int:
        return start_command(self.options(prompt), name or prompt, tries, at_once)

    def state(self, name: str) -> str:
        return read_agent(find_agent(self.sessions, name)).state.value

    def until(self, name: str, state: str) -> None:
        wait_for(lambda: self.state(name) == state, lambda: f"{name} is {self.state(name)}")

    def kill(self, name: str) -> None:
        place = find_agent(self.sessions, name)
        os.kill(lock_holder(place / LOCK) or 0, signal.SIGKILL)
        wait_for(lambda: not is_held(place / LOCK), lambda: "the lock stays")

    def apply(self, name: str, *files: str, merging: bool = False, dry_run: bool = False) -> int:
        return apply_command(self.sessions, name, list(files), merging=merging, dry_run=dry_run, as_json=True)

    @property
    def numbers(self) -> bytes:
        return (self.folder / "numbers").read_bytes()


def wait_for(what: Callable[[], bool], story: Callable[[], str], seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, story()
        time.sleep(0.02)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with playing(SCRIPTS) as server:
        desk = Desk(tmp_path, server)
        yield desk
        server.held.clear()
        for place in agent_folders(desk.sessions):
            wait_for(lambda place=place: not is_held(place / LOCK), lambda: "an agent does not end")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents work in this process, to their end, before they count as started."""

    def at_once(place: Path, lock: int) -> None:
        Queue(place.parent).draw(place.name)
        with suppress(SessionError):  # ends its process, not the one that started it
            worker.main(place, lock)

    monkeypatch.setattr(start, "_spawn", at_once)


def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_killed_and_resumed_and_merged_into_a_folder_that_moved_on(
    desk: Desk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", "secret")
    desk.server.held.add("first")
    assert desk.start("first") == 0
    told = capsys.readouterr()
    id = told.out.strip()
    assert told.err == "etude agents follow first\n"
    place = find_agent(desk.sessions, id[:2])
    wait_for(lambda: desk.server.asked == [("first", 0)], lambda: "it does not ask")
    assert desk.state(id) == "running"
    with pytest.raises(SessionError, match=f"{id} is at work: `etude agents stop` it before you apply it"):
        desk.apply(id)
    with pytest.raises(SessionError, match="there is an agent 'first' already"):
        desk.start("first")

    desk.kill(id)
    assert desk.state(id) == "interrupted"
    desk.server.held.clear()
    resume_command(desk.sessions, id, None, False)
    assert follow_command(desk.sessions, id, False) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[1:] == [
        "first",
        "(continues after its last complete turn)",
        "Now",
        "> replace numbers one 1",
        *[f"  {line}" for line in ("The edited lines now read:", "1 1", "2 two", "3 three", "4 four")],
        "1 it is.",
        "(done)",
    ]
    assert "1 file changed: etude agents show first" in shown.err
    assert not any(b"secret" in path.read_bytes() for path in place.rglob("*") if path.is_file())
    assert desk.server.keys == {"Bearer secret"}

    show_command(desk.sessions, id, True)
    result = printed(capsys)
    assert (result["state"], result["text"], result["turns"]) == ("done", "1 it is.", 2)
    assert "-one\n+1\n" in result["diff"]

    (desk.folder / "numbers").write_bytes(NUMBERS.replace(b"five", b"FIVE"))
    with pytest.raises(ApplyConflict, match="numbers changed meanwhile in other lines"):
        desk.apply(id)
    desk.apply(id, merging=True, dry_run=True)
    assert printed(capsys)["steps"] == [{"path": "numbers", "fit": "merges", "why": ""}]
    desk.apply(id, merging=True)
    assert printed(capsys) == {"applied": ["numbers"], "merged": ["numbers"]}
    assert desk.numbers == b"1\ntwo\nthree\nfour\nFIVE\n"
    assert desk.state(id) == "applied"
    signal_line = load_session(place).signals[-1]
    assert (signal_line["what"], signal_line["files"]) == ("edits_accepted", ["numbers"])
    with pytest.raises(SessionError, match="has no changes to decide on"):
        desk.apply(id)
    list_command(desk.sessions, desk.folder, True)
    assert [(a["name"], a["files"], a["added"], a["removed"]) for a in printed(capsys)] == [("first", 1, 1, 1)]
    remove_command(desk.sessions, [id], False)
    assert list(agent_folders(desk.sessions)) == []


def test_the_queue_lets_one_at_a_time_to_work(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk.server.held.update(SCRIPTS)
    desk.start("look", "one", at_once=1)
    desk.start("last", "two", at_once=1)
    desk.start("clash", "three", at_once=1)
    wait_for(lambda: len(desk.server.asked) == 1, lambda: "nobody asks")
    assert [desk.state(name) for name in ("one", "two", "three")] == ["running", "queued", "queued"]
    list_command(desk.sessions, None, False)
    shown = capsys.readouterr().out
    assert [line.split("  ")[1] for line in shown.splitlines() if ": " in line] == [
        "queued (2)",
        "queued (1)",
        "running",
    ]
    stop_command(desk.sessions, ["two"])
    assert desk.state("two") == "stopped"
    assert not (find_agent(desk.sessions, "two") / "session.jsonl").exists(), "who waits begins nothing"
    stop_command(desk.sessions, ["one"])
    assert desk.state("one") == "stopped"
    desk.until("three", "running")
    desk.server.held.clear()
    desk.until("three", "done")
    assert [prompt for prompt, _ in desk.server.asked if prompt != "look"] == ["clash", "clash"]
    with pytest.raises(SessionError, match="is not at work: it is done"):
        stop_command(desk.sessions, ["three"])


@pytest.mark.usefixtures("here")
def test_another_request_counts_from_what_was_applied(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk.start("twice")
    assert desk.state("twice") == "done"
    with pytest.raises(SessionError, match="has nothing left to do: give a prompt with -p"):
        resume_command(desk.sessions, "twice", None, False)
    desk.apply("twice")
    assert desk.numbers == NUMBERS.replace(b"two", b"2")
    # The user goes on in the very line: that is where the agent's next request starts from.
    (desk.folder / "numbers").write_bytes(NUMBERS.replace(b"two", b"II"))
    resume_command(desk.sessions, "twice", "and three", False)
    assert desk.state("twice") == "done"
    desk.apply("twice")
    assert desk.numbers == NUMBERS.replace(b"two", b"II").replace(b"three", b"3")
    capsys.readouterr()
    show_command(desk.sessions, "twice", True)
    shown = printed(capsys)
    assert (shown["prompts"], shown["state"], shown["turns"]) == (["twice", "and three"], "applied", 5)
    assert [entry["what"] for entry in shown["signals"]] == ["edits_accepted", "edits_accepted"]


@pytest.mark.usefixtures("here")
def test_what_was_rejected_is_kept_until_it_is_removed(desk: Desk) -> None:
    desk.start("clash")
    assert desk.state("clash") == "done"
    with pytest.raises(SessionError, match="neither applied nor rejected: --force drops them"):
        remove_command(desk.sessions, ["clash"], False)
    reject_command(desk.sessions, ["clash"])
    assert desk.state("clash") == "rejected"
    assert load_session(find_agent(desk.sessions, "clash")).signals[-1]["what"] == "edits_rejected"
    assert desk.numbers == NUMBERS
    (desk.folder / "numbers").write_bytes(NUMBERS.replace(b"one", b"eins"))
    with pytest.raises(ApplyConflict, match="nothing was written: numbers was changed meanwhile in the same lines"):
        desk.apply("clash", merging=True)
    remove_command(desk.sessions, ["clash"], False)
    with pytest.raises(SessionError, match="there is no agent 'clash'"):
        find_agent(desk.sessions, "clash")


@pytest.mark.usefixtures("here")
def test_what_clashes_is_made_again_on_top_by_its_agent(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk.start("again")
    (desk.folder / "numbers").write_bytes(NUMBERS.replace(b"one", b"eins"))
    (desk.folder / "words").write_bytes(WORDS.replace(b"end", b"END"))
    with pytest.raises(ApplyConflict, match=r"numbers was changed meanwhile in the same lines; .*resume --rebase"):
        desk.apply("again", merging=True)
    with pytest.raises(ApplyConflict, match=r"changed since .* began: numbers, words; --rebase"):
        resume_command(desk.sessions, "again", None, False)
    capsys.readouterr()
    resume_command(desk.sessions, "again", "Be careful.", False, rebase=True)
    assert desk.state("again") == "done"
    capsys.readouterr()
    show_command(desk.sessions, "again", True)
    shown = printed(capsys)
    told = shown["prompts"][1]
    assert told.startswith(
        "Meanwhile others changed words, in other lines than you: both changes are in now. Meanwhile"
    )
    assert "others changed numbers where you did: it is as they made it now" in told
    assert told.endswith("\n\nBe careful.")
    assert "-eins\n+UNO\n" in shown["diff"]
    assert "-begin\n+BEGIN\n" in shown["diff"]
    assert "END" not in shown["diff"].replace(" END\n", "")
    desk.apply("again")
    assert desk.numbers == NUMBERS.replace(b"one", b"UNO")
    assert (desk.folder / "words").read_bytes() == b"BEGIN\nmiddle\nEND\n"


@pytest.mark.usefixtures("here")
def test_tries_are_agents_of_their_own_and_none_is_the_last_session(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.start("look", "tries", tries=2)
    ids = capsys.readouterr().out.split()
    assert [read_agent(find_agent(desk.sessions, id)).order.name for id in ids] == ["tries-1", "tries-2"]
    with pytest.raises(SessionError, match="has no session of"):
        agent_command(desk.options("more", resume="last"))
    with pytest.raises(SessionError, match="is an agent in the background: `etude agents resume"):
        agent_command(desk.options("more", resume=find_agent(desk.sessions, ids[0]).name))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"prompt": None}, "nothing to do"),
        ({"resume": "last"}, "to continue one, use `etude agents resume`"),
        ({"apply": True}, "review the change first"),
        ({"folder": Path("/nowhere")}, "/nowhere is not a folder"),
        ({"rules": Rules(here=True)}, "--here does not go with --background"),
        ({"rules": Rules(allow=("write",))}, "need --here"),
        ({"endpoint": EndpointOptions("", "any", "A_KEY", 8000, 20, money=1.0)}, "--money needs --prices"),
    ],
)
def test_mistakes_start_nothing(desk: Desk, change: dict[str, Any], says: str) -> None:
    with pytest.raises(SessionError, match=says):
        start_command(replace(desk.options("look"), **change), "", 1, 4)
    assert not desk.sessions.exists()


@pytest.mark.usefixtures("here")
def test_a_request_that_was_lost_in_the_queue_is_not_forgotten(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.start("twice")
    desk.apply("twice")
    with monkeypatch.context() as patch:
        patch.setattr(start, "_spawn", lambda place, lock: None)  # killed before it could do anything
        resume_command(desk.sessions, "twice", "and three", False)
    assert desk.state("twice") == "interrupted", "not applied: there is more to do"
    resume_command(desk.sessions, "twice", None, False)
    assert desk.state("twice") == "done"
    desk.apply("twice")
    assert desk.numbers == NUMBERS.replace(b"two", b"2").replace(b"three", b"3")


def test_ctrl_c_waits_for_a_start_to_be_whole() -> None:
    done = []

    def begin() -> None:
        with start.heeded_afterwards():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("the rest of it")

    with pytest.raises(KeyboardInterrupt):
        begin()
    assert done


@pytest.mark.usefixtures("here")
def test_a_folder_that_goes_before_its_agent_begins_is_a_failure_that_says_so(
    desk: Desk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    away = desk.folder.with_name("elsewhere")
    begin = start._spawn

    def without_it(place: Path, lock: int) -> None:
        desk.folder.rename(away)
        begin(place, lock)

    with monkeypatch.context() as patch:
        patch.setattr(start, "_spawn", without_it)
        desk.start("last")
    assert desk.state("last") == "failed"
    assert follow_command(desk.sessions, "last", False) == 1
    shown = capsys.readouterr()
    # However a line of its length is broken.
    assert f"(failed:{desk.folder}isnotthereanymore)" in "".join(shown.out.split())
    assert "failed: etude agents resume last" in shown.err
    away.rename(desk.folder)
    resume_command(desk.sessions, "last", None, False)
    assert desk.state("last") == "done"
