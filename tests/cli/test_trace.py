"""etude trace and etude sessions: what was done is shown, listed, agreed to, counted, and exported without secrets."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.harness.parts import ScriptedEngine, playing, repository, written
from tests.harness.test_session_tokens import BOX, HARNESS, policy
from tests.trace.atif_schema import Trajectory

from etude.cli.errors import exit_code
from etude.cli.sessions.commands import check_command, consent_command, list_command
from etude.cli.trace.exporting import EXPORTS, export_command
from etude.cli.trace.showing import show_command
from etude.harness import ChatSession, Conversation, Message, Role, ToolCall, Turn
from etude.harness.sessions import SessionRecord, load_session
from etude.trace import ToolEvent, Trace, TraceUsage, from_line, write_traces


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing of the machine that runs the tests is known to be a secret."""
    monkeypatch.setenv("HOME", str(tmp_path / "nobodys"))
    monkeypatch.setattr("socket.gethostname", lambda: "a-test-machine")
    monkeypatch.setattr("getpass.getuser", lambda: "somebody-else")
    return tmp_path


@pytest.fixture
def sessions(home: Path) -> Path:
    """One session of a policy that owns ids, in which a change was accepted."""
    folder = repository(home / "repository")
    turns = [written("read calc.py", text="so"), written("edit calc.py 3 return max(a, b)"), written(text="ok")]

    async def play() -> None:
        record = SessionRecord.begin(home / "sessions" / "one", model="tiny", profile="compact", folder=str(folder))
        async with ChatSession(folder, policy(ScriptedEngine(playing(turns))), HARNESS, BOX, record=record) as session:
            await session.run("make check pass\nplease")
            await session.apply()

    asyncio.run(play())
    return home / "sessions"


def run(capsys: pytest.CaptureFixture[str], *words: Any, redact: bool = True, code: int = 0) -> tuple[str, str]:
    what, to, sessions, *rest = words
    out, only = rest[0] if rest else None, rest[1] if len(rest) > 1 else []
    assert exit_code(lambda: export_command(what, to, out, only, sessions, redact=redact)) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_a_session_goes_into_every_format(sessions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run(capsys, "last", "atif", sessions)
    trajectory = Trajectory.model_validate_json(out)
    assert [step.source for step in trajectory.steps] == ["system", "user", "agent", "agent", "agent"]
    assert trajectory.steps[2].metrics is not None
    assert {tool["function"]["name"] for tool in trajectory.agent.tool_definitions or []} >= {"read", "edit"}
    assert err == "nothing had to be redacted\n"
    out, _ = run(capsys, str(sessions / "one"), "openai", None)
    (record,) = (json.loads(line) for line in out.splitlines())
    assert [message["role"] for message in record["messages"]][-1] == "assistant"
    assert record["tools"]
    out, _ = run(capsys, "one", "markdown", sessions)
    assert "+    return max(a, b)" in out
    assert "edits_accepted" in out


def test_training_on_a_session_needs_its_users_word(sessions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run(capsys, "one", "jsonl", sessions, code=2)
    assert (out, err.count("\n")) == ("", 1)
    assert "etude sessions consent one yes" in err
    assert exit_code(lambda: consent_command("one", "yes", sessions)) == 0
    assert "may be trained on" in capsys.readouterr().out
    out, _ = run(capsys, "one", "jsonl", sessions)
    trace = from_line(out)
    assert trace.segments[0].sampled.sum() == trace.usage.sampled_tokens > 0
    assert exit_code(lambda: consent_command("last", "no", sessions)) == 0
    capsys.readouterr()
    assert "may not be trained on" in run(capsys, "one", "jsonl", sessions, code=2)[1]
    assert exit_code(lambda: consent_command("one", "maybe", sessions)) == 2


def test_ids_that_spell_a_secret_are_left_out_with_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = repository(home / "repository")
    (folder / "calc.py").write_text("KEY = 'AKIAQ6XZTN4PWLKD2J7B'\n")

    async def play() -> None:
        record = SessionRecord.begin(home / "sessions" / "one", consent=True)
        engine = ScriptedEngine(playing([written("read calc.py"), written(text="ok")]))
        async with ChatSession(folder, policy(engine), HARNESS, BOX, record=record) as session:
            await session.run("look")

    asyncio.run(play())
    out, err = run(capsys, "one", "jsonl", home / "sessions")
    assert from_line(out).segments == []
    assert "1 trace is without token ids" in err
    assert "redacted: 2 aws-key" in err
    out, err = run(capsys, "one", "jsonl", home / "sessions", redact=False)
    assert from_line(out).segments
    assert err == ""


def test_trace_files_are_exported_one_by_one_or_all_together(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message: dict[str, object] = {"role": "user", "content": "hello"}
    traces = [Trace(f"g/{n}", "t", "dev", "g", n, "p", 0, messages=[message]) for n in range(3)]
    file = home / "traces.parquet"
    write_traces(file, traces)
    out, _ = run(capsys, str(file), "openai", None)
    assert [json.loads(line)["metadata"]["member"] for line in out.splitlines()] == [0, 1, 2]
    assert "name one with --id" in run(capsys, str(file), "atif", None, code=2)[1]
    out, _ = run(capsys, str(file), "markdown", None, None, ["g/1"])
    assert "`g/1`" in out
    (home / "out").mkdir()
    run(capsys, str(file), "atif", None, home / "out")
    assert sorted(path.name for path in (home / "out").iterdir()) == ["g_0.json", "g_1.json", "g_2.json"]
    run(capsys, str(file), "jsonl", None, home / "again.jsonl")
    assert len(run(capsys, str(home / "again.jsonl"), "openai", None)[0].splitlines()) == 3
    for words, says in (
        ((str(file), "atif", None, None, ["g/9"]), "holds no trace g/9"),
        ((str(file), "pdf", None), "expected one of atif, openai, markdown, jsonl"),
        ((str(home / "none"), "atif", home), "neither a trace file nor a folder of traces"),
    ):
        assert says in run(capsys, *words, code=2)[1]


def test_sessions_are_listed_and_shown(sessions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (sessions / "torn").mkdir()
    (sessions / "torn" / "session.jsonl").write_text("nonsense\n")
    assert list_command(sessions, None, as_json=False) == 1
    shown = capsys.readouterr()
    assert "one  " in shown.out
    assert "tiny  replied, 3 turns" in shown.out
    assert "    make check pass\n" in shown.out
    assert "line 1 of" in shown.err
    assert list_command(sessions, sessions.parent / "repository", as_json=True) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["id"], row["state"], row["consent"], row["requests"]) == ("one", "replied", False, 1)
    record = load_session(sessions / "one").resume_record()
    assert list_command(sessions, sessions.parent / "repository", as_json=True) == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "at work"
    record.close()
    assert show_command("one", [], sessions) == 0
    shown = capsys.readouterr()
    assert "make check pass\nplease" in shown.out
    assert "edits accepted" in shown.out


def test_what_others_wrote_moves_no_cursor(sessions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "\x9b2J\u202egone\x1b[2J"
    trace = Trace("t", hostile, "", "", 0, "p", 0, messages=[{"role": "user", "content": hostile}])
    write_traces(sessions / "hostile.parquet", [trace])
    assert show_command(str(sessions / "hostile.parquet"), [], None) == 0
    assert "<U+009B>2J<U+202E>gone\u241b[2J\n" in capsys.readouterr().out


def test_what_became_of_edits_is_counted_when_somebody_looks(
    sessions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = sessions / "one" / "session.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        line["time"] -= 700
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert check_command(sessions, None, as_json=False) == 0
    told = capsys.readouterr().out.splitlines()
    assert told == [
        "one: 1 of 1 lines stand after 1 minute (looked after 11 minutes)",
        "one: 1 of 1 lines stand after 10 minutes (looked after 11 minutes)",
    ]
    assert check_command(sessions, sessions.parent / "repository", as_json=True) == 0
    assert json.loads(capsys.readouterr().out) == []


SECRETS = [
    "AKIAQ6XZTN4PWLKD2J7B",
    "ghp_x7Kd93mQvB2nLpR5tYcW8sZaE1fGhJ4uN6oX",
    'opensesame\\nand "more" of it\nsecond line',
]
PLACES = ["asked", "text", "thinking", "argument", "raw", "output", "told", "before", "now", "error", "model"]
PLACES += ["path", "name"]


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    places=st.sets(st.sampled_from(PLACES), min_size=1),
    secret=st.sampled_from(SECRETS),
    near=st.sampled_from(["", " ", "x="]),
)
def test_a_secret_that_was_planted_anywhere_is_in_no_export(
    home: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    places: set[str],
    secret: str,
    near: str,
) -> None:
    monkeypatch.setenv("ENDPOINT_KEY", SECRETS[2])

    def put(place: str, text: str = "x") -> str:
        return f"{text} {near}{secret} {text}" if place in places else text

    sessions = tmp_path_factory.mktemp("sessions")
    record = SessionRecord.begin(
        sessions / "one", model=put("model"), consent=True, profile="compact", key="ENDPOINT_KEY"
    )
    messages = [Message(Role.SYSTEM, "s"), Message(Role.USER, put("asked"))]
    record.opened(Conversation("c", messages, "t"))
    good = ToolCall(
        "1", put("name", "write"), {"path": put("path", "f"), "text": put("argument")}, put("raw", "write f")
    )
    bad = ToolCall("2", "edit", None, put("raw", "edit"), "broken")
    event = ToolEvent(0, 0, "write", put("raw", "write f"), True, True, 0.1, put("output"), 3)
    files = {put("path", "f"): (put("before").encode(), put("now", "y").encode())}
    turn = Turn(put("text"), put("thinking"), (good, bad))
    record.turned(turn, [event, event], [Message(Role.USER, put("told"))], TraceUsage(turns=1), files, {})
    record.stopped("error", put("error"))
    record.signal("edits_accepted", files=list(files))
    record.close()
    planted = [secret, json.dumps(secret)[1:-1], *(line for line in secret.split("\n") if "\n" in secret)]
    for form in EXPORTS:
        out, err = run(capsys, "one", form, sessions)
        found = [*_texts(json.loads(out))] if form == "atif" else [out]
        assert not [piece for piece in planted for text in [out, *found] if piece in text], form
        assert "redacted: " in err
    assert show_command("one", [], sessions) == 0
    shown, first = capsys.readouterr().out, secret.split("\n")[0]
    assert first in shown or json.dumps(first)[1:-1] in shown, "it was there"


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for part in inside for text in _texts(part)]
