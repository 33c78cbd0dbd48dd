"""Writes a session as it happens: `session.jsonl`, a line per whole turn, and `blobs/`, the files that turns changed.

Invariants: a line is on its way to the disk when the call returns, its blobs before it, so a kill at any moment loses
at most the turn that was going on; a torn last line is no line; nothing that is written is ever changed. Each blob is
named by the digest of its bytes. The folder is its owner's alone: what an agent read stands in it.

Nothing waits for the disk, since many sessions share one loop: a power cut may cost the last seconds, and what it tore
is seen by the digests.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import zstandard

from etude.harness.policy import Conversation, Message, ToolCall, Turn
from etude.journal.files import disk_problem
from etude.trace.trace import ToolEvent, TraceUsage

FORMAT = "etude-session/1"
LOG, BLOBS = "session.jsonl", "blobs"


class SessionError(Exception):
    """A session cannot be written or read: says which, why, and what to do."""


class SessionRecord:
    """`open` begins a session's folder or goes on with it; one writer at a time."""

    def __init__(self, folder: Path, descriptor: int, seen: Mapping[str, str | None]) -> None:
        self.folder = folder
        self._descriptor = descriptor
        self._seen = dict(seen)
        """Digests of changed files, as the log has them."""
        self._contents: dict[str, bytes | None] = {}
        """What those digests are of, where it was written here."""

    @classmethod
    def begin(cls, place: Path, /, **about: object) -> SessionRecord:
        """`about`: profile, model, the user's folder, whether the user agreed to the session's use."""
        try:
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
            (place / BLOBS).mkdir(mode=0o700)
            descriptor = os.open(place / LOG, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise SessionError(f"{place} has a session already: go on with it, or name another") from None
        except OSError as error:
            raise SessionError(f"cannot write a session to {place}: {disk_problem(error)}") from error
        record = cls(place, descriptor, {})
        record._line("session", format=FORMAT, **about)
        return record

    @classmethod
    def go_on(cls, folder: Path, size: int, seen: Mapping[str, str | None]) -> SessionRecord:
        """`size`: of the log's whole lines; `seen`: what they say of changed files (replay.py knows both)."""
        try:
            descriptor = os.open(folder / LOG, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            os.ftruncate(descriptor, size)
        except OSError as error:
            raise SessionError(f"cannot go on with the session in {folder}: {disk_problem(error)}") from error
        return cls(folder, descriptor, seen)

    def opened(self, conversation: Conversation) -> None:
        """The first context begins, with messages that the agent did not write."""
        self._line("opened", **_beginning(conversation))

    def asked(self, message: Message) -> None:
        """The user goes on."""
        self._line("asked", text=message.text)

    def summarised(self, conversation: Conversation, turn: Turn, usage: TraceUsage) -> None:
        """A context ends with the request for a summary and the summary, and another begins: in one line, since half of
        it would be no state to go on from."""
        assert conversation.parent is not None
        request = conversation.parent.messages[-2].text
        self._line("summarised", request=request, turn=_turn(turn), usage=_plain(usage), next=_beginning(conversation))

    def turned(
        self,
        turn: Turn,
        tools: Sequence[ToolEvent],
        told: Sequence[Message],
        usage: TraceUsage,
        files: Mapping[str, tuple[bytes | None, bytes | None]],
        state: Mapping[str, object],
    ) -> None:
        """A turn with the answers to its calls and what the harness said to it. `files`: path -> content at the start
        and now, of each that differs; `state`: what the toolbox carries (to-do list, counts of edits)."""
        changed: dict[str, dict[str, str | None]] = {}
        for path, (before, now) in files.items():
            if path in self._contents and self._contents[path] is now:
                continue
            digest, self._contents[path] = self._blob(now), now
            if path not in self._seen or self._seen[path] != digest:
                changed[path] = {"before": self._blob(before), "now": digest}
                self._seen[path] = digest
        for path in self._seen.keys() - files.keys():
            changed[path] = {}
            del self._seen[path]
            self._contents.pop(path, None)
        self._line(
            "turn",
            turn=_turn(turn),
            tools=[_plain(event) for event in tools],
            told=[message.text for message in told],
            usage=_plain(usage),
            files=changed,
            state=dict(state),
        )

    def rebased(self, files: Mapping[str, tuple[bytes | None, bytes | None] | None]) -> None:
        """Between two runs: contents that count as the start and as the agent's own from here on; None for a file that
        is taken as the folder has it."""
        changed = {
            path: pair and {"before": self._blob(pair[0]), "now": self._blob(pair[1])} for path, pair in files.items()
        }
        self._line("rebased", files=changed)

    def stopped(self, stop: str, error: str) -> None:
        self._line("stopped", stop=stop, error=error)

    def signal(self, what: str, /, **fields: object) -> None:
        """What the user made of it: changes accepted, rejected, still there after a while, a follow-up, a wait."""
        self._line("signal", what=what, **fields)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _blob(self, data: bytes | None) -> str | None:
        if data is None:
            return None
        digest = digest_of(data)
        path = self.folder / BLOBS / digest
        if not path.exists():
            try:
                _write_whole(path, zstandard.compress(data))
            except OSError as error:
                raise SessionError(f"cannot write the session in {self.folder}: {disk_problem(error)}") from error
        return digest

    def _line(self, kind: str, /, **fields: Any) -> None:
        line = json.dumps({"time": round(time.time(), 3), "kind": kind, **fields}, separators=(",", ":")).encode()
        try:
            written = os.write(self._descriptor, line + b"\n")
        except OSError as error:
            raise SessionError(f"cannot write the session in {self.folder}: {disk_problem(error)}") from error
        if written != len(line) + 1:
            raise SessionError(f"cannot write the session in {self.folder}: the disk is full")


def digest_of(data: bytes) -> str:
    """What a blob is named by."""
    return hashlib.blake2b(data, digest_size=20).hexdigest()


def _write_whole(path: Path, data: bytes) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        aside.write_bytes(data)
        aside.replace(path)
    except OSError:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise


_FIELDS = {kind: [field.name for field in fields(kind)] for kind in (Turn, ToolCall, ToolEvent, TraceUsage)}


def _plain(value: Turn | ToolCall | ToolEvent | TraceUsage) -> dict[str, Any]:
    """As JSON takes it. `asdict` would copy all that is in it, which costs more than the rest of the turn."""
    return {name: getattr(value, name) for name in _FIELDS[type(value)]}


def _turn(turn: Turn) -> dict[str, Any]:
    return {**_plain(turn), "calls": [_plain(call) for call in turn.calls]}


def _beginning(conversation: Conversation) -> dict[str, Any]:
    return {
        "id": conversation.id,
        "task": conversation.task,
        "summaries": conversation.summaries,
        "messages": [{"role": message.role.value, "text": message.text} for message in conversation.messages],
    }
