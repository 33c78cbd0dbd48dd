"""Writes a session to disk while it runs.

The folder holds `session.jsonl`, one line per complete turn; `blobs/`, the contents of changed files; and
`tokens.steps`, the token ids of a policy that owns ids.

Invariants: when a call returns, its line has been written to the file, and its blobs before it. So a kill loses at most
the turn in progress; a torn last line is ignored; and what is written is never changed. Each blob is named by the
digest of its contents. Only its owner can read the folder, since it holds what the agent read.

Nothing waits for the disk (no fsync), since many sessions share one event loop. So a power cut may lose the last
seconds; the digests reveal what it tore.
"""

from __future__ import annotations

import fcntl
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
from etude.harness.sessions.timing import Clock
from etude.journal.files import disk_problem
from etude.trace.builder import TraceBuilder
from etude.trace.steps import StepsFile
from etude.trace.trace import ToolEvent, TraceUsage

FORMAT = "etude-session/1"
LOG, BLOBS, STEPS = "session.jsonl", "blobs", "tokens.steps"
EDITS = ("edits_accepted", "edits_rejected")

Sides = tuple[str | None, str | None]
"""Digests of a file at the session's start (or when it was last accepted) and now; None if there is no file."""


class SessionError(Exception):
    """A session cannot be written or read; the message says which one, why, and what to do."""


class SessionRecord:
    """The open record of one session: `begin` makes a new one, `go_on` resumes one, `beside` only adds signals. One
    writer at a time owns a session's turns."""

    def __init__(self, folder: Path, descriptor: int, seen: Mapping[str, Sides], steps: int = 0) -> None:
        self.folder = folder
        self.clock = Clock()
        self.policy: object = None
        self._descriptor = descriptor
        self._seen = dict(seen)
        """Digests of changed files, as last logged."""
        self._contents: dict[str, bytes | None] = {}
        """Contents of the second of those digests, for files written by this record."""
        self._keep = steps
        self._steps: StepsFile | None = None

    @classmethod
    def begin(cls, place: Path, /, **about: object) -> SessionRecord:
        """Start a new session in `place`. `about` holds profile, model, the user's folder, and `consent`: whether the
        user agreed to training on the session."""
        try:
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
            (place / BLOBS).mkdir(mode=0o700)
            descriptor = os.open(place / LOG, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise SessionError(f"{place} has a session already: go on with it, or name another") from None
        except OSError as error:
            raise SessionError(f"cannot write a session to {place}: {disk_problem(error)}") from error
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        record = cls(place, descriptor, {})
        record._line("session", format=FORMAT, **about)
        return record

    @classmethod
    def go_on(cls, folder: Path, size: int, seen: Mapping[str, Sides], steps: int = 0) -> SessionRecord:
        """Resume a session. `size` is the length of the log's complete lines, `seen` what they say of changed files,
        and `steps` how many bytes of the token ids belong to them. `replay.py` computes all three."""
        try:
            descriptor = os.open(folder / LOG, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise SessionError(f"cannot go on with the session in {folder}: {disk_problem(error)}") from error
        _drop_torn_line(folder, descriptor, size)
        return cls(folder, descriptor, seen, steps)

    @classmethod
    def beside(cls, folder: Path) -> SessionRecord:
        """Open a session only to add signals, while it is not running or while another process writes it."""
        try:
            descriptor = os.open(folder / LOG, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
            _cut_if_alone(folder, descriptor)
        except OSError as error:
            raise SessionError(f"{folder} is no session that can be written to: {disk_problem(error)}") from error
        return cls(folder, descriptor, {})

    def follow(self, policy: object) -> None:
        """Record this policy's turns. If it has a `recorder`, its token ids are written beside the session."""
        self.policy = policy
        recorder = getattr(policy, "recorder", None)
        if isinstance(recorder, TraceBuilder):
            self._steps = StepsFile(self.folder / STEPS, keep=self._keep)
            recorder.sink = self._steps

    def opened(self, conversation: Conversation) -> None:
        """Log the first context, with messages that the agent did not write."""
        self.clock.asked(time.time())
        self._line("opened", **_beginning(conversation))

    def asked(self, message: Message) -> None:
        """Log a follow-up request of the user."""
        after = self.clock.asked(time.time())
        self._line("asked", text=message.text)
        self.signal("follow_up", after_seconds=after)

    def summarised(
        self, conversation: Conversation, turn: Turn, usage: TraceUsage, seconds: Mapping[str, float] | None = None
    ) -> None:
        """Log a self-summary: the old context ends with the request and the summary, and a new one begins. All in one
        line, since half of it would be no state to resume from."""
        assert conversation.parent is not None
        request = conversation.parent.messages[-2].text
        self._line(
            "summarised",
            request=request,
            turn=_turn(turn),
            usage=_plain(usage),
            next=_beginning(conversation),
            seconds=_rounded(seconds),
            steps=self._step_bytes(),
        )
        self.clock.summarised(seconds or {})

    def turned(
        self,
        turn: Turn,
        tools: Sequence[ToolEvent],
        told: Sequence[Message],
        usage: TraceUsage,
        files: Mapping[str, tuple[bytes | None, bytes | None]],
        state: Mapping[str, object],
        seconds: Mapping[str, float] | None = None,
    ) -> None:
        """Log a turn with its tool results and the harness's own messages. `files`: contents at the start and now, of
        each file that differs; `state`: what the toolbox carries (to-do list, edit counts); `seconds`: time spent in
        the policy and in tools."""
        changed = self._differences(files)
        self._line(
            "turn",
            turn=_turn(turn),
            tools=[_plain(event) for event in tools],
            told=[message.text for message in told],
            usage=_plain(usage),
            files=changed,
            state=dict(state),
            seconds=_rounded(seconds),
            steps=self._step_bytes(),
        )
        self.clock.turned(seconds or {})

    def rebased(self, files: Mapping[str, tuple[bytes | None, bytes | None] | None]) -> None:
        """Log new starts and current states of files between two runs; None: now as it is in the folder."""
        changed = {
            path: pair and {"before": self._blob(pair[0]), "now": self._blob(pair[1])} for path, pair in files.items()
        }
        self._line("rebased", files=changed)

    def put_back(self, files: Mapping[str, tuple[bytes | None, bytes | None]]) -> None:
        """Log that the user reverted changes of the agent. `files` are all that still differ."""
        self._line("put_back", files=self._differences(files))

    def stopped(self, stop: str, error: str) -> None:
        spent = self.clock.stopped(time.time())
        if stop == "cancelled":
            self.signal("interrupted", turns=spent["turns"], after_seconds=spent["total_seconds"])
        self.signal("latency", **spent)
        self._line("stopped", stop=stop, error=error)

    def signal(self, what: str, /, **fields: object) -> None:
        """Log what the user made of the result: changes accepted, rejected or still there after a while, a follow-up, a
        wait (docs/trace.md lists all). Accepted files belong to the folder: later changes count from there."""
        if what in EDITS and "changes" not in fields:
            fields["changes"] = self._settled(fields.get("files"), gone=what == "edits_accepted")
        self._line("signal", what=what, **fields)

    def _differences(self, files: Mapping[str, tuple[bytes | None, bytes | None]]) -> dict[str, dict[str, str | None]]:
        """Digests of files that differ from what was last logged; an empty entry: as at the start again."""
        changed: dict[str, dict[str, str | None]] = {}
        for path, (before, now) in files.items():
            if path in self._contents and self._contents[path] is now:
                continue
            digest, self._contents[path] = self._blob(now), now
            if path not in self._seen or self._seen[path][1] != digest:
                start = self._seen[path][0] if path in self._seen else self._blob(before)
                changed[path] = {"before": start, "now": digest}
                self._seen[path] = (start, digest)
        for path in self._seen.keys() - files.keys():
            changed[path] = {}
            del self._seen[path]
            self._contents.pop(path, None)
        return changed

    def _settled(self, files: object, *, gone: bool) -> dict[str, dict[str, str | None]]:
        paths = [path for path in files if path in self._seen] if isinstance(files, list) else []
        sides = {path: self._seen[path] for path in paths}
        if gone:
            for path in sides:
                del self._seen[path]
                self._contents.pop(path, None)
        return {path: {"before": before, "now": now} for path, (before, now) in sides.items()}

    def _step_bytes(self) -> int:
        return self._steps.size if self._steps else self._keep

    def close(self) -> None:
        if self._steps is not None:
            self._steps.close()
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
            with suppress(OSError):
                _cut_if_alone(self.folder, self._descriptor)  # the next line, if it fits, must not be joined to it
            raise SessionError(f"cannot write the session in {self.folder}: the disk is full")


def digest_of(data: bytes) -> str:
    """Digest of a file's contents, which names its blob."""
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
    """The value as a JSON object. `asdict` would copy everything in it, which costs more than the rest of the turn."""
    return {name: getattr(value, name) for name in _FIELDS[type(value)]}


def _turn(turn: Turn) -> dict[str, Any]:
    return {**_plain(turn), "calls": [_plain(call) for call in turn.calls]}


def being_written(folder: Path) -> bool:
    """Whether some process has the session open for writing."""
    try:
        descriptor = os.open(folder / LOG, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _cut_if_alone(folder: Path, descriptor: int) -> None:
    """Cut a torn last line from the log, unless another process is writing: then that line is its business."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, (folder / LOG).read_bytes().rfind(b"\n") + 1)
    except BlockingIOError:
        pass
    fcntl.flock(descriptor, fcntl.LOCK_SH)


def _drop_torn_line(folder: Path, descriptor: int, size: int) -> None:
    """Lock the log and cut a torn last line. Writers hold a shared lock, and what another process is writing is not
    torn: only a sole writer may cut."""
    try:
        if os.fstat(descriptor).st_size > size:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, size)
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise SessionError(f"the session in {folder} is being written by another process: wait for its end") from None
    except OSError as error:
        os.close(descriptor)
        raise SessionError(f"cannot go on with the session in {folder}: {disk_problem(error)}") from error


def _rounded(seconds: Mapping[str, float] | None) -> dict[str, float]:
    return {name: round(value, 4) for name, value in (seconds or {}).items()}


def _beginning(conversation: Conversation) -> dict[str, Any]:
    return {
        "id": conversation.id,
        "task": conversation.task,
        "summaries": conversation.summaries,
        "messages": [{"role": message.role.value, "text": message.text} for message in conversation.messages],
    }
