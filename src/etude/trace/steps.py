"""The steps file: tokens of a rollout or session, appended as they are recorded, one frame per record.

Invariants: a frame has reached the kernel when the call that writes it returns, so a kill loses at most the turn in
progress. An incomplete last frame is ignored; damage anywhere else is an error. Reading gives the recorded segments,
token for token. The format `etude-steps/2` is described in docs/trace.md; `etude-steps/1`, which is read too, has one
segment that grows at a time.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from etude.journal.files import disk_problem
from etude.trace.builder import TraceBuilder
from etude.trace.file import TraceError
from etude.trace.trace import Break, BreakKind, Segment, SegmentKind

FORMAT = "etude-steps/2"
_OLDER_LINE = b"etude-steps/1\n"
_MAGIC = b"etude-steps/"
_FIRST_LINE = FORMAT.encode() + b"\n"
_FRAME = struct.Struct("<II")
"""Header of a frame: length and CRC-32 of the frame's payload."""
_MOST_BYTES = 1 << 30

Frame = tuple[dict[str, Any], bytes, int]
"""One record of a steps file, as (JSON head, bytes of its arrays, offset of its end in the file)."""


class StepsFile:
    """Writes a steps file, the tokens of one rollout or session. It can be the `sink` of a TraceBuilder.

    When it continues an existing file, new segments are numbered after the existing ones. The first new segment repeats
    the conversation so far. So its kind is SegmentKind.REWRITTEN, and its parent is the last segment that the file had.
    """

    def __init__(self, path: Path, *, keep: int | None = None) -> None:
        """Open a steps file for appending. If the file exists, its complete frames within the first `keep` bytes are
        kept (None: within the whole file), and the rest is cut off."""
        self.path = path
        self.size = 0
        self._offset = 0
        self._segments = 0
        """Number of segments in the file. Frames that do not name their segment belong to the last one."""
        self._zstd = zstandard.ZstdCompressor(level=1)
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            found = os.fstat(self._descriptor).st_size
        except OSError as error:
            raise TraceError(f"cannot write {path}: {disk_problem(error)}") from error
        if not found or keep == 0:
            os.ftruncate(self._descriptor, 0)
            self._put(_FIRST_LINE)
            return
        frames = list(_frames(path, keep))
        _name_format(path)
        self.size = frames[-1][2] if frames else len(_FIRST_LINE)
        self._offset = self._segments = sum(head["kind"] == "segment" for head, _, _ in frames)
        os.ftruncate(self._descriptor, self.size)

    def segment(self, number: int, parent: int | None, kind: SegmentKind, tokens: NDArray[np.int32]) -> None:
        place, above = number + self._offset, parent + self._offset if parent is not None else None
        if above is None and place:
            above, kind = place - 1, SegmentKind.REWRITTEN
        self._frame({"kind": "segment", "id": place, "parent": above, "begins": kind.value}, tokens=tokens)
        self._segments = place + 1

    def given(self, segment: int, tokens: NDArray[np.int32]) -> None:
        if len(tokens):
            self._frame({"kind": "given", **self._in(segment)}, tokens=tokens)

    def broken(self, segment: int, found: Break) -> None:
        self._frame(
            {
                "kind": "break",
                **self._in(segment),
                "how": found.kind.value,
                "place": found.place,
                "detail": found.detail,
            }
        )

    def sampled(
        self,
        segment: int,
        tokens: NDArray[np.int32],
        logprobs: NDArray[np.float32],
        versions: NDArray[np.int32],
        experts: NDArray[np.uint16] | None,
        experts_from: int,
    ) -> None:
        head: dict[str, Any] = {"kind": "sampled", **self._in(segment)}
        arrays: dict[str, NDArray[Any]] = {"tokens": tokens, "logprobs": logprobs, "versions": versions}
        if experts is not None:
            head["experts_from"], head["shape"] = experts_from, list(experts.shape)
            arrays["experts"] = experts.reshape(-1)
        self._frame(head, **arrays)

    def note(self, what: str, /, **fields: object) -> None:
        """Append a record without tokens, of kind `what`, such as the messages of a turn."""
        self._frame({"kind": "note", "what": what, **fields})

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _in(self, segment: int) -> dict[str, int]:
        place = segment + self._offset
        return {} if place == self._segments - 1 else {"segment": place}

    def _frame(self, head: Mapping[str, Any], **arrays: NDArray[Any]) -> None:
        sizes = {name: len(array) for name, array in arrays.items()}
        text = json.dumps({**head, "arrays": sizes}, separators=(",", ":")).encode()
        raw = b"".join(array.astype(_TYPES[name], copy=False).tobytes() for name, array in arrays.items())
        payload = self._zstd.compress(text + b"\n" + raw)
        self._put(_FRAME.pack(len(payload), zlib.crc32(payload)) + payload)

    def _put(self, data: bytes) -> None:
        try:
            written = os.write(self._descriptor, data)
            if written != len(data):
                os.ftruncate(self._descriptor, self.size)
        except OSError as error:
            raise TraceError(f"cannot write {self.path}: {disk_problem(error)}") from error
        if written != len(data):
            raise TraceError(f"cannot write {self.path}: the disk is full; free some space")
        self.size += len(data)


_TYPES = {"tokens": "<i4", "logprobs": "<f4", "versions": "<i4", "experts": "<u2"}


def read_steps(path: Path, *, keep: int | None = None) -> tuple[list[Segment], list[dict[str, Any]]]:
    """Return the segments and notes of a steps file, or of its first `keep` bytes. The file may still be written to."""
    builder, notes = TraceBuilder(), []
    for head, raw, _ in _frames(path, keep):
        try:
            if head["kind"] == "note":
                notes.append({key: value for key, value in head.items() if key not in ("kind", "arrays")})
            else:
                _record(builder, head, _arrays(head, raw))
        except (KeyError, ValueError, TypeError) as error:
            raise TraceError(f"{path} is damaged: a frame holds values that do not fit together ({error!r})") from error
    return builder.segments(), notes


def _record(builder: TraceBuilder, head: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
    segment = head.get("segment")
    if head["kind"] == "segment":
        builder.start_segment(SegmentKind(head["begins"]), head["parent"], arrays["tokens"].tolist())
    elif head["kind"] == "given":
        builder.extend(arrays["tokens"].tolist(), segment=segment)
    elif head["kind"] == "break":
        builder.broken(BreakKind(head["how"]), head["place"], head["detail"], segment=segment)
    elif head["kind"] == "sampled":
        experts = arrays["experts"].reshape(head["shape"]) if "experts" in arrays else None
        start = head.get("experts_from", 0)
        sampled = arrays["tokens"], arrays["logprobs"], arrays["versions"]
        builder.sampled(*sampled, experts=experts, experts_from=start, segment=segment)
    else:
        raise ValueError(f"a frame of kind {head['kind']}")


def _name_format(path: Path) -> None:
    """Name the present format in a file of the older one, which it includes, before frames of it are appended."""
    with path.open("r+b") as file:
        if file.read(len(_OLDER_LINE)) == _OLDER_LINE:
            file.seek(0)
            file.write(_FIRST_LINE)


def _arrays(head: dict[str, Any], raw: bytes) -> dict[str, NDArray[Any]]:
    found, at = {}, 0
    for name, count in head["arrays"].items():
        found[name] = np.frombuffer(raw, _TYPES[name], count, at)
        at += found[name].nbytes
    return found


def _frames(path: Path, keep: int | None) -> Iterator[Frame]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from error
    first = data[: len(_FIRST_LINE)]
    if first not in (_FIRST_LINE, _OLDER_LINE):
        if _FIRST_LINE.startswith(data):
            return  # the writer was killed before it had written the first line
        found = data[:40].split(b"\n")[0].decode(errors="replace")
        if found.startswith(_MAGIC.decode()):
            raise TraceError(f"{path} is {found}, this version reads {FORMAT} and older: update étude")
        raise TraceError(f"{path} is not a steps file: expected it to begin with {FORMAT}, found {found!r}")
    at, end = len(_FIRST_LINE), len(data) if keep is None else min(keep, len(data))
    while at + _FRAME.size <= end:
        length, check = _FRAME.unpack_from(data, at)
        until = at + _FRAME.size + length
        if until > end:
            return
        payload = data[at + _FRAME.size : until]
        if zlib.crc32(payload) != check:
            raise TraceError(f"{path} is damaged at byte {at}: the checksum of the frame does not match its content")
        plain = zstandard.decompress(payload, max_output_size=_MOST_BYTES)
        text, _, raw = plain.partition(b"\n")
        yield json.loads(text), raw, until
        at = until
