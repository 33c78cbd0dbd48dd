"""Writes a session to disk while it runs.

The session's folder contains `session.jsonl`, with one line per complete turn; `blobs/`, with the contents of changed
files, each named by its digest; and `tokens.steps`, with the token ids if the policy records them.

Invariants: when a method of SessionRecord returns, its line has been written to the file, and the blobs that the line
names were written before. So a kill loses at most the turn in progress. Written lines never change; a torn last line is
ignored. The folder is readable only by its owner, since it contains what the agent read.

Writes are not synced to disk (no fsync), because many sessions share one event loop. A power cut may lose the last
seconds; the digests then reveal damaged blobs.
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

from etude.harness.sessions.timing import Clock
from etude.journal.files import disk_problem
from etude.trace.builder import TraceBuilder
from etude.trace.conversation.messages import Conversation, Message, ToolCall, Turn
from etude.trace.steps import StepsFile
from etude.trace.trace import ToolEvent, TraceUsage

FORMAT = "etude-session/1"
LOG, BLOBS, STEPS = "session.jsonl", "blobs", "tokens.steps"
EDITS = ("edits_accepted", "edits_rejected")
"""Signals that the user accepted or rejected edits. They contain the digests of the edited files."""

Sides = tuple[str | None, str | None]
"""Digests of a file's original contents (at the session's start, or when last accepted) and of its current contents;
None where there is no file."""


class SessionError(Exception):
    """A session or background agent cannot be used, usually because its files cannot be written or read. The message
    says which session or agent it is, why and, if it helps, what to do."""


class SessionRecord:
    """The open record of one session. `begin` creates a record and `resume` continues one. `for_signals` opens one only
    to add signals, which are observations of how the user reacts.

    Only one process at a time may write a session's turns.
    """

    def __init__(self, folder: Path, descriptor: int, seen: Mapping[str, Sides], steps: int = 0) -> None:
        self.folder = folder
        self.clock = Clock()
        self.policy: object = None
        self._descriptor = descriptor
        self._seen = dict(seen)
        """Digests of changed files, by path, as last logged."""
        self._contents: dict[str, bytes | None] = {}
        self._keep = steps
        self._steps: StepsFile | None = None

    @classmethod
    def begin(cls, place: Path, /, **about: object) -> SessionRecord:
        """Create a new session in the folder `place`. `about` becomes the log's first line: profile, model, the user's
        folder, and `consent` to training."""
        try:
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
            (place / BLOBS).mkdir(mode=0o700)
            descriptor = os.open(place / LOG, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise SessionError(f"{place} already contains a session: resume it, or choose another folder") from None
        except OSError as error:
            raise SessionError(f"cannot write a session to {place}: {disk_problem(error)}") from error
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        record = cls(place, descriptor, {})
        record._line("session", format=FORMAT, **about)
        return record

    @classmethod
    def resume(cls, folder: Path, size: int, seen: Mapping[str, Sides], steps: int = 0) -> SessionRecord:
        """Continue the record of a saved session, with what `replay.py` read from its log.

        `size` is the number of bytes of complete lines, `seen` has the digests of changed files, and `steps` is the
        number of bytes of `tokens.steps` that belong to complete turns.
        """
        try:
            descriptor = os.open(folder / LOG, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise SessionError(f"cannot resume the session in {folder}: {disk_problem(error)}") from error
        _drop_torn_line(folder, descriptor, size)
        return cls(folder, descriptor, seen, steps)

    @classmethod
    def for_signals(cls, folder: Path) -> SessionRecord:
        """Open a record only to add signals, while another process may write the session's turns."""
        try:
            descriptor = os.open(folder / LOG, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
            _cut_if_alone(folder, descriptor)
        except OSError as error:
            raise SessionError(f"cannot write to a session in {folder}: {disk_problem(error)}") from error
        return cls(folder, descriptor, {})

    def follow(self, policy: object) -> None:
        """Set the policy whose turns are recorded. If it has a `recorder`, its token ids go to `tokens.steps`."""
        self.policy = policy
        recorder = getattr(policy, "recorder", None)
        if isinstance(recorder, TraceBuilder):
            self._steps = StepsFile(self.folder / STEPS, keep=self._keep)
            recorder.sink = self._steps

    def opened(self, conversation: Conversation) -> None:
        self.clock.asked(time.time())
        self._line("opened", **_beginning(conversation))

    def asked(self, message: Message) -> None:
        after = self.clock.asked(time.time())
        self._line("asked", text=message.text)
        self.signal("follow_up", after_seconds=after)

    def summarised(
        self, conversation: Conversation, turn: Turn, usage: TraceUsage, seconds: Mapping[str, float] | None = None
    ) -> None:
        """Log request, summary and the new conversation's beginning as one line, since a session could not be resumed
        from a part of them."""
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
        """Log a complete turn. `told` are messages of the harness. `files` has the original and the current contents of
        each changed file, `state` the toolbox's state for resuming, `seconds` the time in the policy and in tools."""
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
        """Log that, between two runs, changes were moved onto newer versions of the user's files.

        For each file that the user changed too, `files` has the new original (the user's) and current contents (with
        both changes). None means that the agent's change was dropped, and the file no longer counts as changed.
        """
        changed = {
            path: pair and {"before": self._blob(pair[0]), "now": self._blob(pair[1])} for path, pair in files.items()
        }
        self._line("rebased", files=changed)

    def put_back(self, files: Mapping[str, tuple[bytes | None, bytes | None]]) -> None:
        """Log that the user reverted changes. `files` has the original and current contents of each file still
        changed."""
        self._line("put_back", files=self._differences(files))

    def stopped(self, stop: str, error: str) -> None:
        """Log the end of a run, after two signals: "interrupted", only if the user interrupted it, and "latency"."""
        spent = self.clock.stopped(time.time())
        if stop == "cancelled":
            self.signal("interrupted", turns=spent["turns"], after_seconds=spent["total_seconds"])
        self.signal("latency", **spent)
        self._line("stopped", stop=stop, error=error)

    def signal(self, what: str, /, **fields: object) -> None:
        """Log an observation of how the user reacts (docs/trace.md lists all). After "edits_accepted", the accepted
        files no longer count as changed."""
        if what in EDITS and "changes" not in fields:
            fields["changes"] = self._settled(fields.get("files"), gone=what == "edits_accepted")
        self._line("signal", what=what, **fields)

    def _differences(self, files: Mapping[str, tuple[bytes | None, bytes | None]]) -> dict[str, dict[str, str | None]]:
        """Return the digests of each file that changed since the last logged line. A file that has its original
        contents again gets an empty entry."""
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
        """Return the digests of those changed files that the user accepted or rejected. If `gone`, they no longer count
        as changed."""
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
                _cut_if_alone(self.folder, self._descriptor)  # so that a later line does not continue the torn one
            raise SessionError(f"cannot write the session in {self.folder}: the disk is full")


def digest_of(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=20).hexdigest()


def _write_whole(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


_FIELDS = {kind: [field.name for field in fields(kind)] for kind in (Turn, ToolCall, ToolEvent, TraceUsage)}


def _plain(value: Turn | ToolCall | ToolEvent | TraceUsage) -> dict[str, Any]:
    """Convert a value to a JSON object. `asdict` is not used, because it would copy all nested values."""
    return {name: getattr(value, name) for name in _FIELDS[type(value)]}


def _turn(turn: Turn) -> dict[str, Any]:
    return {**_plain(turn), "calls": [_plain(call) for call in turn.calls]}


def being_written(folder: Path) -> bool:
    """Return whether any process has the session's log open for writing."""
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
    """Remove a torn last line from the log, unless another process has the log open and so may be writing this line."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, (folder / LOG).read_bytes().rfind(b"\n") + 1)
    except BlockingIOError:
        pass
    fcntl.flock(descriptor, fcntl.LOCK_SH)


def _drop_torn_line(folder: Path, descriptor: int, size: int) -> None:
    """Remove a torn last line, which begins at byte `size`, then take the lock that all writers share. Removing it
    needs an exclusive lock, because another writer may be in the middle of this line. Raises SessionError if another
    process's lock prevents this."""
    try:
        if os.fstat(descriptor).st_size > size:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, size)
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise SessionError(f"another process is writing the session in {folder}: wait until it ends") from None
    except OSError as error:
        os.close(descriptor)
        raise SessionError(f"cannot resume the session in {folder}: {disk_problem(error)}") from error


def _rounded(seconds: Mapping[str, float] | None) -> dict[str, float]:
    return {name: round(value, 4) for name, value in (seconds or {}).items()}


def _beginning(conversation: Conversation) -> dict[str, Any]:
    return {
        "id": conversation.id,
        "task": conversation.task,
        "summaries": conversation.summaries,
        "messages": [{"role": message.role.value, "text": message.text} for message in conversation.messages],
    }
