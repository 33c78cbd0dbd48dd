"""Reads saved sessions from their logs, up to the last complete line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import zstandard

from etude.harness.sessions.record import BLOBS, FORMAT, LOG, STEPS, SessionError, SessionRecord, digest_of
from etude.trace.conversation.messages import Conversation, Message, Role, ToolCall, Turn
from etude.trace.trace import ToolEvent, TraceUsage

REBASED = "rebased"
"""Value of `SavedSession.stop` after changes were moved onto newer files of the user, which ends an interrupted run."""


@dataclass(slots=True)
class SavedSession:
    """State of a saved session after the last complete line of its log."""

    folder: Path
    about: dict[str, Any]
    """First line of the log: profile, model, the user's folder, consent to training."""
    conversation: Conversation | None = None
    """The conversation after the last complete turn; earlier conversations are its parents."""
    usage: TraceUsage = field(default_factory=TraceUsage)
    tools: list[ToolEvent] = field(default_factory=list)
    files: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)
    """Digests of the original and the current contents of each changed file."""
    reverted: list[str] = field(default_factory=list)
    """Files whose changes the user reverted since the last request."""
    state: dict[str, Any] = field(default_factory=dict)
    """Toolbox state to restore on resuming, such as the to-do list."""
    signals: list[dict[str, Any]] = field(default_factory=list)
    requests: int = 0
    turns: int = 0
    reviewed: str = ""
    """The user's decision on the changes, made since the last request: "accepted", "rejected", or empty."""
    stop: str = ""
    """The logged end of the last request's last run: the value of its StopCause, or REBASED. A killed run logs no end,
    so it does not change this value, which is empty if no run of the request has ended."""
    error: str = ""
    spent: TraceUsage = field(default_factory=TraceUsage)
    """Tokens and turns used by all requests before the last one."""
    seconds: dict[str, float] = field(default_factory=lambda: {"policy": 0.0, "tools": 0.0})
    steps: int = 0
    """Number of bytes of complete turns in `tokens.steps`."""
    stopped: float = 0.0
    size: int = 0
    """Number of bytes of the complete lines in the log."""

    @property
    def consent(self) -> bool:
        said = self.training_answer
        return bool(self.about.get("consent", False) if said is None else said)

    @property
    def training_answer(self) -> bool | None:
        """The user's latest answer in this session to whether it may be used for training; None if there is no
        answer."""
        given = [bool(signal["given"]) for signal in self.signals if signal["what"] == "consent"]
        return given[-1] if given else None

    def total(self) -> TraceUsage:
        return _sum(self.spent, self.usage)

    @property
    def tokens(self) -> Path:
        """The file with token ids, which exists only if the policy recorded them."""
        return self.folder / STEPS

    def changed(self) -> dict[str, tuple[bytes | None, bytes | None]]:
        return {path: (self.content(before), self.content(now)) for path, (before, now) in self.files.items()}

    def resume_record(self) -> SessionRecord:
        record = SessionRecord.resume(self.folder, self.size, self.files, self.steps)
        record.clock.was_stopped(self.stopped if self.stop else None)
        return record

    def content(self, digest: str | None) -> bytes | None:
        """Return the contents with this digest. Raises SessionError if the blob is missing or damaged."""
        if digest is None:
            return None
        path = self.folder / BLOBS / digest
        try:
            content = zstandard.decompress(path.read_bytes())
        except (OSError, zstandard.ZstdError) as error:
            raise SessionError(f"the session in {self.folder} lacks the blob {path.name}: {error}") from error
        if digest_of(content) != digest:
            raise SessionError(f"the session in {self.folder} has a damaged blob, {path.name}")
        return content


def list_sessions(folder: Path) -> Iterator[Path]:
    """Yield the folders of all sessions directly below `folder`, most recently written first."""
    found = [path.parent for path in folder.glob(f"*/{LOG}")]
    return iter(sorted(found, key=lambda path: (path / LOG).stat().st_mtime, reverse=True))


def sessions_of(folder: Path, user: Path) -> Iterator[Path]:
    """Yield those of `list_sessions` that worked on the user's folder `user`. Unreadable sessions are skipped."""
    mine = str(user.resolve())
    for place in list_sessions(folder):
        with suppress(OSError, ValueError, TypeError), (place / LOG).open("rb") as log:
            if json.loads(log.readline()).get("folder") == mine:
                yield place


def load_session(folder: Path) -> SavedSession:
    try:
        data = (folder / LOG).read_bytes()
    except OSError as error:
        raise SessionError(f"{folder} is not a session: {LOG} cannot be read ({error.strerror})") from error
    session: SavedSession | None = None
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(keepends=True), 1):
        try:
            entry = json.loads(line)
            kind = entry["kind"]
            if session is None:
                session = _begun(folder, entry)
            else:
                _TAKES[kind](session, entry)
        except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise SessionError(f"line {number} of {folder / LOG} cannot be read: {error!r}") from error
        session.size += len(line)
    if session is None:
        raise SessionError(f"{folder / LOG} is empty: the session was killed before it began; delete {folder}")
    return session


def _begun(folder: Path, entry: dict[str, Any]) -> SavedSession:
    found = entry.pop("format", "")
    if entry.pop("kind") != "session" or found != FORMAT:
        raise SessionError(f"{folder} contains a session of format {found!r}; this version reads {FORMAT}")
    return SavedSession(folder, entry)


def _opened(session: SavedSession, entry: dict[str, Any]) -> None:
    session.conversation = _conversation(entry, None)
    session.stop = ""
    session.requests += 1


def _asked(session: SavedSession, entry: dict[str, Any]) -> None:
    conversation = _open(session)
    conversation.messages.append(Message(Role.USER, entry["text"]))
    conversation.task = entry["text"]
    session.spent = _sum(session.spent, session.usage)
    session.usage, session.stop, session.reviewed = TraceUsage(), "", ""
    session.reverted = []
    session.requests += 1


def _summarised(session: SavedSession, entry: dict[str, Any]) -> None:
    old, turn = _open(session), _turn_of(entry["turn"])
    old.messages += [Message(Role.USER, entry["request"]), Message(Role.ASSISTANT, turn.text, turn=turn)]
    session.usage = _usage(entry["usage"])
    session.steps = entry.get("steps", 0)
    _add_seconds(session, entry)
    session.conversation = _conversation(entry["next"], old)


def _conversation(entry: dict[str, Any], parent: Conversation | None) -> Conversation:
    messages = [Message(Role(m["role"]), m["text"]) for m in entry["messages"]]
    return Conversation(entry["id"], messages, entry["task"], parent, entry["summaries"])


def _turn_of(raw: dict[str, Any]) -> Turn:
    return Turn(**{**raw, "calls": tuple(ToolCall(**call) for call in raw["calls"])})


def _turn(session: SavedSession, entry: dict[str, Any]) -> None:
    turn = _turn_of(entry["turn"])
    events = [ToolEvent(**event) for event in entry["tools"]]
    messages = _open(session).messages
    messages.append(Message(Role.ASSISTANT, turn.text, turn=turn))
    # Calls after the one that ended the run have no result.
    messages += [Message(Role.TOOL, event.output, call=call) for call, event in zip(turn.calls, events, strict=False)]
    messages += [Message(Role.USER, text) for text in entry["told"]]
    session.tools += events
    session.usage = _usage(entry["usage"])
    session.state, session.steps = entry["state"], entry.get("steps", 0)
    _add_seconds(session, entry)
    session.turns += 1
    _changed(session, entry)


def _changed(session: SavedSession, entry: dict[str, Any]) -> None:
    for path, change in entry["files"].items():
        if change:
            before = session.files[path][0] if path in session.files else change["before"]
            session.files[path] = (before, change["now"])
        else:
            session.files.pop(path, None)


def _put_back(session: SavedSession, entry: dict[str, Any]) -> None:
    session.reverted += entry["files"]
    _changed(session, entry)


def _stopped(session: SavedSession, entry: dict[str, Any]) -> None:
    session.stop, session.error = entry["stop"], entry.get("error", "")
    session.stopped = entry["time"]


def _rebased(session: SavedSession, entry: dict[str, Any]) -> None:
    # This ends an interrupted run: the next request describes the changed files to the agent.
    session.stop = REBASED
    for path, change in entry["files"].items():
        if change:
            session.files[path] = (change["before"], change["now"])
        else:
            session.files.pop(path, None)


def _signal(session: SavedSession, entry: dict[str, Any]) -> None:
    session.signals.append({key: value for key, value in entry.items() if key != "kind"})
    if entry["what"] in ("edits_accepted", "edits_rejected"):
        session.reviewed = entry["what"].removeprefix("edits_")
    if entry["what"] == "edits_accepted":
        # Accepted files no longer count as changed.
        for path in entry["files"]:
            session.files.pop(path, None)


def _add_seconds(session: SavedSession, entry: dict[str, Any]) -> None:
    for name in session.seconds:
        session.seconds[name] += entry.get("seconds", {}).get(name, 0.0)


def _usage(raw: dict[str, int]) -> TraceUsage:
    """Convert logged counters. Counters that this version does not know are ignored, and missing ones are 0."""
    return TraceUsage(**{f.name: raw.get(f.name, 0) for f in fields(TraceUsage)})


def _sum(one: TraceUsage, other: TraceUsage) -> TraceUsage:
    return TraceUsage(**{f.name: getattr(one, f.name) + getattr(other, f.name) for f in fields(TraceUsage)})


def _open(session: SavedSession) -> Conversation:
    if session.conversation is None:
        raise ValueError("no conversation was opened before it")
    return session.conversation


_TAKES = {
    "opened": _opened,
    "asked": _asked,
    "turn": _turn,
    "summarised": _summarised,
    "put_back": _put_back,
    "rebased": _rebased,
    "stopped": _stopped,
    "signal": _signal,
}
