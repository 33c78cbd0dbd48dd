"""What a session tells of what the user made of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contract.sandbox.support import in_loop
from tests.harness.parts import SAMPLE, repository
from tests.harness.test_sessions import BOX, HARNESS, Following

from etude.harness import ChatSession, Conversation, Turn
from etude.harness.sessions import SavedSession, SessionRecord, being_written, load_session, record_kept_lines
from etude.harness.sessions.kept_lines import AFTER_SECONDS, kept_lines
from etude.harness.sessions.record import LOG

STEPS = ["> edit calc.py 1 # larger\n> delete pack/other.py", "done", "> edit calc.py 1 # largest", "done"]


def play(folder: Path, place: Path) -> SavedSession:
    async def main() -> None:
        record = SessionRecord.begin(place, folder=str(folder))
        async with ChatSession(folder, Following(STEPS), HARNESS, BOX, record=record) as session:
            await session.run("shorten it")
            await session.apply()
            await session.run("not like that")
            assert being_written(place)

    asyncio.run(main())
    assert not being_written(place)
    return load_session(place)


def of(session: SavedSession, what: str) -> list[dict[str, object]]:
    return [signal for signal in session.signals if signal["what"] == what]


def test_times_and_follow_ups_are_told(tmp_path: Path) -> None:
    saved = play(repository(tmp_path / "repository"), tmp_path / "session")
    first, second = of(saved, "latency")
    assert (first["turns"], second["turns"]) == (2, 2)
    assert first["total_seconds"] >= first["policy_seconds"] + first["tool_seconds"] - 0.01
    assert first["policy_seconds"] >= first["first_turn_seconds"]
    assert first["first_piece_seconds"] is None, "this policy does not stream"
    (follow_up,) = of(saved, "follow_up")
    assert float(str(follow_up["after_seconds"])) >= 0
    assert saved.seconds["policy"] == pytest.approx(first["policy_seconds"] + second["policy_seconds"], abs=0.01)


def test_what_was_accepted_is_settled_and_the_session_goes_on_from_there(tmp_path: Path) -> None:
    folder = repository(tmp_path / "repository")
    saved = play(folder, tmp_path / "session")
    (accepted,) = of(saved, "edits_accepted")
    assert sorted(accepted["changes"]) == ["calc.py", "pack/other.py"]
    assert list(saved.files) == ["calc.py"], "only what was done since is open"
    assert {path: sides[0] for path, sides in saved.changed().items()} == {"calc.py": (folder / "calc.py").read_bytes()}
    session = ChatSession(folder, Following(STEPS), HARNESS, BOX, saved=saved)
    diff = asyncio.run(session.diff())
    assert "-# larger\n+# largest" in diff
    asyncio.run(session.close())


def test_what_was_taken_back_stays_so_and_the_next_request_says_it(tmp_path: Path) -> None:
    folder, place = repository(tmp_path / "repository"), tmp_path / "session"

    async def play() -> None:
        record = SessionRecord.begin(place)
        async with ChatSession(folder, Following(STEPS), HARNESS, BOX, record=record) as session:
            await session.run("shorten it")
            await session.run("further")
            assert await session.undo() == ["calc.py"]
            assert await session.revert(["pack/other.py"]) == ["pack/other.py"]
            assert "+# larger\n" in await session.diff()

    async def go_on() -> None:
        async with ChatSession(folder, Following([*STEPS, "done"]), HARNESS, BOX, saved=load_session(place)) as session:
            assert not session.unfinished
            diff = await session.diff()
            assert "+# larger\n" in diff
            assert "largest" not in diff
            assert "pack/other.py" not in diff
            await session.run("well then")
            assert session.conversation is not None
            assert session.conversation.task.startswith("(The user took back your changes to calc.py, pack/other.py.)")

    asyncio.run(play())
    assert [sorted(signal["changes"]) for signal in of(load_session(place), "edits_rejected")] == [
        ["calc.py"],
        ["pack/other.py"],
    ]
    asyncio.run(go_on())
    assert load_session(place).reverted == []


def test_a_session_whose_files_were_replaced_waits_for_a_request(tmp_path: Path) -> None:
    folder = repository(tmp_path / "repository")
    record = play(folder, tmp_path / "session").resume_record()
    record.rebased({"calc.py": None})
    record.close()
    session = ChatSession(folder, Following(STEPS), HARNESS, BOX, saved=load_session(tmp_path / "session"))
    assert not session.unfinished
    assert asyncio.run(session.diff()) == ""
    asyncio.run(session.close())


@in_loop
async def test_the_first_piece_of_an_answer_is_timed(tmp_path: Path) -> None:
    class Streaming(Following):
        on_piece = None

        async def act(self, conversation: Conversation, *, max_tokens: int) -> Turn:
            self.on_piece("a")
            self.on_piece("b")
            return await super().act(conversation, max_tokens=max_tokens)

    heard: list[str] = []
    policy = Streaming(STEPS)
    policy.on_piece = heard.append
    folder = repository(tmp_path / "repository")
    record = SessionRecord.begin(tmp_path / "session")
    async with ChatSession(folder, policy, HARNESS, BOX, record=record) as session:
        await session.run("shorten it")
    (latency,) = of(load_session(tmp_path / "session"), "latency")
    assert heard == ["a", "b"] * 2
    assert 0 <= latency["first_piece_seconds"] <= latency["first_turn_seconds"]


@in_loop
async def test_an_interrupt_is_told(tmp_path: Path) -> None:
    folder, asked = repository(tmp_path / "repository"), asyncio.Event()

    class NeverAnswers(Following):
        async def act(self, conversation: Conversation, *, max_tokens: int) -> Turn:
            asked.set()
            return await asyncio.get_running_loop().create_future()

    record = SessionRecord.begin(tmp_path / "session")
    async with ChatSession(folder, NeverAnswers(), HARNESS, BOX, record=record) as session:
        running = asyncio.create_task(session.run("shorten it"))
        await asked.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    saved = load_session(tmp_path / "session")
    assert [signal["what"] for signal in saved.signals] == ["interrupted", "latency"]
    assert saved.stop == "cancelled"


def test_lines_that_stand_are_counted_once_for_each_time_that_is_due(tmp_path: Path) -> None:
    folder = repository(tmp_path / "repository")
    saved = play(folder, tmp_path / "session")
    accepted = float(str(of(saved, "edits_accepted")[0]["time"]))
    assert record_kept_lines(saved, now=accepted + 59) == []
    (minute,) = record_kept_lines(saved, now=accepted + 61)
    assert (minute["lines_added"], minute["lines_kept"], minute["looked_after_seconds"]) == (1, 1, 61.0)
    (folder / "calc.py").write_bytes(SAMPLE["calc.py"])
    rest = record_kept_lines(load_session(tmp_path / "session"), now=accepted + 1e6)
    assert [signal["after_seconds"] for signal in rest] == list(AFTER_SECONDS[1:])
    assert {signal["lines_kept"] for signal in rest} == {0}
    assert rest[0]["files"] == {"calc.py": [1, 0], "pack/other.py": [0, 0]}
    again = load_session(tmp_path / "session")
    assert record_kept_lines(again, now=accepted + 1e7) == []
    assert len(of(again, "edits_kept")) == len(AFTER_SECONDS)


lines = st.lists(st.sampled_from(["a", "b", "c", "d = 1", "", "}"]), max_size=12)


def text(found: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in found).encode()


@settings(max_examples=50, deadline=None)
@given(before=lines, accepted=lines, around=lines)
def test_kept_lines_hold_whatever_moves_around_them(before: list[str], accepted: list[str], around: list[str]) -> None:
    added, kept = kept_lines(text(before), text(accepted), text(accepted))
    assert added == kept, "nothing has changed"
    assert added <= sum(line != "" for line in accepted)
    assert kept_lines(text(before), text(accepted), text([*around, *accepted, *around])) == (added, added)
    assert kept_lines(text(before), text(accepted), b"") == (added, 0)
    assert kept_lines(text(accepted), text(accepted), text(before)) == (0, 0)


def test_kept_lines_by_hand() -> None:
    before, accepted = b"one\ntwo\n", b"one\nnew\nother new\ntwo\n"
    assert kept_lines(before, accepted, accepted) == (2, 2)
    assert kept_lines(before, accepted, b"two\nzero\nnew\n") == (2, 1), "one was taken away, others moved"
    assert kept_lines(before, accepted, b"  new\ntwo\nother new\none\n") == (2, 2), "moved and indented, they stand"
    assert kept_lines(before, accepted, before) == (2, 0)
    assert kept_lines(before, b"\x00", accepted) == (0, 0)
    long = [f"line {n}" for n in range(20_000)]
    assert kept_lines(text(long), text([*long[:50], "new", *long[50:]]), text([*long[:60], "new", *long[60:]])) == (
        1,
        1,
    )


def test_a_torn_line_is_cut_before_a_signal_but_never_what_somebody_writes(tmp_path: Path) -> None:
    record = SessionRecord.begin(tmp_path / "session")
    record.close()
    log = tmp_path / "session" / LOG
    with log.open("ab") as torn:
        torn.write(b'{"time": 1, "kind": "tu')
    for given_ in (True, False):
        beside = SessionRecord.for_signals(tmp_path / "session")
        beside.signal("consent", given=given_)
        beside.close()
        assert load_session(tmp_path / "session").consent is given_
    assert [json.loads(line)["kind"] for line in log.read_bytes().splitlines()] == ["session", "signal", "signal"]
    writer = SessionRecord.resume(tmp_path / "session", log.stat().st_size, {})
    with log.open("ab") as going_on:
        going_on.write(b'{"time": 1, ')
    beside = SessionRecord.for_signals(tmp_path / "session")
    assert log.read_bytes().endswith(b'{"time": 1, '), "its writer may be in the middle of a line"
    beside.close()
    writer.close()
