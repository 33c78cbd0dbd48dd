"""etude trace export: writes traces and sessions in formats that other tools read, by default redacted.

Invariant: a session whose user has not consented is never written in the training format, jsonl.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import IO, Any

from etude.cli.trace.find_traces import Subject, open_subjects
from etude.harness.sessions import SavedSession, SessionError, tool_schemas
from etude.journal.files import write_atomically
from etude.trace import Trace, TraceError, to_atif, to_line, to_markdown, to_openai_contexts
from etude.trace.redact import Redactor, known_here, redacted

Signals = list[dict[str, Any]]


def export_command(
    what: str, to: str, out: Path | None, only: list[str], sessions: Path | None, *, redact: bool
) -> int:
    if to not in EXPORTS:
        raise TraceError(f"there is no format {to!r}: expected one of {', '.join(EXPORTS)}")
    write, suffix = EXPORTS[to]
    redactor = Redactor() if redact else None
    texts = _texts(open_subjects(what, only, sessions), to, write, redactor)
    if out is not None and (out.is_dir() or str(out).endswith(os.sep)):
        for name, text in texts:
            write_atomically(out / f"{name}{suffix}", text.encode("utf-8", "replace"))
    else:
        _put(texts, to, out)
    if redactor is not None:
        _tell(redactor)
    return 0


def _texts(
    subjects: Iterable[Subject], to: str, write: Callable[..., str], redactor: Redactor | None
) -> Iterator[tuple[str, str]]:
    """Yield each trace's file name, without suffix, and its content, without the secrets that `redactor` knows."""
    left_out = 0
    for subject in subjects:
        trace, session = subject.trace, subject.session
        if to == "jsonl" and session is not None and not session.consent:
            raise SessionError(
                f"{session.folder.name} may not be trained on: its user has not consented; "
                f"`etude sessions consent {session.folder.name} yes` gives consent"
            )
        signals = _signals(session)
        if redactor is not None:
            for known in known_here(os.environ, _named(session)):
                redactor.add(known)
            redactor.learn(signals)
            clean = redacted(trace, redactor)
            left_out += bool(trace.segments and not clean.segments)
            trace, signals = clean, redactor.clean(signals)
        yield _file_name(trace.id), write(trace, session, signals)
    if left_out:
        told = "1 trace is" if left_out == 1 else f"{left_out} traces are"
        print(f"{told} without token ids, which reveal what was redacted; --no-redact keeps them", file=sys.stderr)


def _put(texts: Iterable[tuple[str, str]], to: str, out: Path | None) -> None:
    """Write the traces to one output. The formats with one document per file accept one trace only."""
    left = iter(texts)
    first = next(left)[1]
    if to in ("atif", "markdown") and next(left, None) is not None:
        raise TraceError("there is more than one trace: name one with --id, or a folder with --out FOLDER/")
    with _target(out) as file:
        for text in chain([first], (text for _, text in left)):
            file.write(text.encode("utf-8", "replace"))


@contextmanager
def _target(out: Path | None) -> Iterator[IO[bytes]]:
    """Open `out`, or standard output for None. A file gets its name only once it is complete."""
    if out is None:
        sys.stdout.flush()
        yield sys.stdout.buffer
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        with aside.open("wb") as file:
            yield file
        aside.replace(out)
    finally:
        aside.unlink(missing_ok=True)


def _atif(trace: Trace, session: SavedSession | None, signals: Signals) -> str:
    extra = {} if session is None else {"signals": signals, "consent": session.consent}
    tools = tool_schemas(session) if session is not None else []
    return json.dumps(to_atif(trace, agent_version=version("etude"), extra=extra, tools=tools), indent=2) + "\n"


def _openai(trace: Trace, session: SavedSession | None, signals: Signals) -> str:
    tools = tool_schemas(session) if session is not None else []
    return "".join(json.dumps(record) + "\n" for record in to_openai_contexts(trace, tools=tools))


EXPORTS: dict[str, tuple[Callable[[Trace, SavedSession | None, Signals], str], str]] = {
    "atif": (_atif, ".json"),
    "openai": (_openai, ".jsonl"),
    "markdown": (lambda trace, _, signals: to_markdown(trace, signals=signals), ".md"),
    "jsonl": (lambda trace, *_: to_line(trace) + "\n", ".jsonl"),
}


def _signals(session: SavedSession | None) -> Signals:
    """Return the session's signals (how the user reacted) without digests of files, which only this session can use."""
    signals = session.signals if session is not None else []
    return [{name: value for name, value in signal.items() if name != "changes"} for signal in signals]


def _named(session: SavedSession | None) -> list[str]:
    """Return the name of the environment variable that held the endpoint's key, if it is known."""
    return [str(session.about["key"])] if session is not None and session.about.get("key") else []


def _file_name(identity: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", identity).lstrip(".") or "trace"


def _tell(redactor: Redactor) -> None:
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(redactor.counts.items()))
    print(f"redacted: {counts}" if counts else "nothing had to be redacted", file=sys.stderr)
