"""Traces as Arrow columns, one row per trace. The schema is the file format `etude-trace/2` (docs/trace.md);
`etude-trace/1`, which is read too, has no breaks.

Invariant: from_batch(to_table(traces)) restores every field of every trace, except that a lone surrogate in a text,
which UTF-8 cannot represent, becomes "?".
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etude.trace.trace import (
    UNKNOWN_EXPERT,
    Break,
    BreakKind,
    Segment,
    SegmentKind,
    StopCause,
    ToolEvent,
    Trace,
    TraceUsage,
)

FORMAT = "etude-trace/2"
READ = (FORMAT, "etude-trace/1")
FORMAT_KEY = b"etude.format"

_UNKNOWN_BYTE = 0xFF
_TEXTS = ("id", "task", "split", "group", "policy", "stop", "error", "diff")
_NUMBERS = ("member", "seed", "started")
_USAGE = [field.name for field in fields(TraceUsage)]
_SECONDS_AND_MONEY = frozenset({"tool_seconds", "cost"})

_BREAK = pa.struct([("kind", pa.string()), ("place", pa.int32()), ("detail", pa.string())])
_SEGMENT = pa.struct(
    [
        ("id", pa.int32()),
        ("parent", pa.int32()),
        ("kind", pa.string()),
        ("tokens", pa.list_(pa.int32())),
        ("sampled", pa.list_(pa.bool_())),
        ("logprobs", pa.list_(pa.float32())),
        ("versions", pa.list_(pa.int32())),
        ("experts", pa.binary()),
        ("expert_layers", pa.int32()),
        ("expert_top_k", pa.int32()),
        ("expert_bytes", pa.int32()),
        ("breaks", pa.list_(_BREAK)),
    ]
)
_TOOL = pa.struct(
    [
        ("segment", pa.int32()),
        ("turn", pa.int32()),
        ("name", pa.string()),
        ("arguments", pa.string()),
        ("ok", pa.bool_()),
        ("valid", pa.bool_()),
        ("seconds", pa.float64()),
        ("output", pa.string()),
        ("output_tokens", pa.int32()),
    ]
)
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in _TEXTS),
        ("member", pa.int32()),
        ("seed", pa.int64()),
        ("started", pa.float64()),
        ("usage", pa.struct([(name, pa.float64() if name in _SECONDS_AND_MONEY else pa.int64()) for name in _USAGE])),
        ("timing", pa.map_(pa.string(), pa.float64())),
        ("segments", pa.list_(_SEGMENT)),
        ("tools", pa.list_(_TOOL)),
        ("messages", pa.string()),
    ],
    metadata={FORMAT_KEY: FORMAT.encode()},
)


def to_table(traces: Sequence[Trace]) -> Any:
    segments = [segment for trace in traces for segment in trace.segments]
    columns: dict[str, list[Any]] = {name: [_text(getattr(trace, name)) for trace in traces] for name in _TEXTS}
    columns |= {name: [getattr(trace, name) for trace in traces] for name in _NUMBERS}
    columns["usage"] = [asdict(trace.usage) for trace in traces]
    columns["timing"] = [[(_text(name), seconds) for name, seconds in trace.timing.items()] for trace in traces]
    columns["tools"] = [[_tool_row(tool) for tool in trace.tools] for trace in traces]
    columns["messages"] = [json.dumps(trace.messages) for trace in traces]
    arrays = {name: pa.array(values, SCHEMA.field(name).type) for name, values in columns.items()}
    offsets = _offsets([len(trace.segments) for trace in traces])
    arrays["segments"] = pa.ListArray.from_arrays(offsets, _segment_array(segments))
    return pa.Table.from_arrays([arrays[name] for name in SCHEMA.names], schema=SCHEMA)


def from_batch(batch: Any, only: Collection[str] | None = None) -> Iterator[Trace]:
    """Yield the traces of a RecordBatch. If `only` is given, yield only the traces with these ids."""
    names = batch.column("id").to_pylist()
    wanted = [row for row, name in enumerate(names) if only is None or name in only]
    if not wanted:
        return
    segments = _SegmentReader(batch.column("segments"))
    light = batch.drop_columns(["segments"])
    for row in wanted:
        values: dict[str, Any] = light.slice(row, 1).to_pylist()[0]
        values["stop"] = StopCause(values["stop"])
        yield Trace(
            **{name: values[name] for name in (*_TEXTS, *_NUMBERS)},
            usage=TraceUsage(**{name: n for name, n in values["usage"].items() if name in _USAGE}),
            timing=dict(values["timing"]),
            segments=segments.of_row(row),
            tools=[ToolEvent(**tool) for tool in values["tools"]],
            messages=json.loads(values["messages"]),
        )


def _text(value: str) -> str:
    return str(value).encode("utf-8", errors="replace").decode()


def _tool_row(tool: ToolEvent) -> dict[str, Any]:
    row = asdict(tool)
    return row | {name: _text(row[name]) for name in ("name", "arguments", "output")}


def _offsets(lengths: Iterable[int]) -> Any:
    return pa.array(np.concatenate([[0], np.cumsum(list(lengths), dtype=np.int64)]).astype(np.int32))


def _lists(arrays: Sequence[NDArray[Any]], dtype: type[np.generic]) -> Any:
    flat = np.concatenate([np.zeros(0, dtype), *(np.asarray(array, dtype) for array in arrays)])
    return pa.ListArray.from_arrays(_offsets(len(array) for array in arrays), pa.array(flat))


def _segment_array(segments: Sequence[Segment]) -> Any:
    packed = [_pack_experts(segment.experts) for segment in segments]
    columns = [
        pa.array([segment.id for segment in segments], pa.int32()),
        pa.array([segment.parent for segment in segments], pa.int32()),
        pa.array([str(segment.kind) for segment in segments], pa.string()),
        _lists([segment.tokens for segment in segments], np.int32),
        _lists([segment.sampled for segment in segments], np.bool_),
        _lists([segment.logprobs for segment in segments], np.float32),
        _lists([segment.versions for segment in segments], np.int32),
        pa.array([data for data, _ in packed], pa.binary()),
        *(pa.array([shape[axis] for _, shape in packed], pa.int32()) for axis in range(3)),
        pa.array([[_break_row(found) for found in segment.breaks] for segment in segments], pa.list_(_BREAK)),
    ]
    return pa.StructArray.from_arrays(columns, fields=list(_SEGMENT))


def _break_row(found: Break) -> dict[str, Any]:
    return {"kind": str(found.kind), "place": found.place, "detail": _text(found.detail)}


def _pack_experts(experts: NDArray[np.uint16] | None) -> tuple[bytes | None, tuple[int | None, ...]]:
    """Pack expert indices into one byte each if all are below 255, else into two (little-endian). All bits set means
    unknown.

    Return the bytes and (layers, top k, bytes per expert)."""
    if experts is None:
        return None, (None, None, None)
    known = experts[experts != UNKNOWN_EXPERT]
    layers, top_k = experts.shape[1:]
    if known.size and int(known.max()) >= _UNKNOWN_BYTE:
        return experts.astype("<u2").tobytes(), (layers, top_k, 2)
    return np.where(experts == UNKNOWN_EXPERT, _UNKNOWN_BYTE, experts).astype(np.uint8).tobytes(), (layers, top_k, 1)


def _unpack_experts(data: bytes, tokens: int, layers: int, top_k: int, width: int) -> NDArray[np.uint16]:
    rows = np.frombuffer(data, "<u2" if width == 2 else np.uint8).reshape(tokens, layers, top_k).astype(np.uint16)
    if width == 1:
        rows[rows == _UNKNOWN_BYTE] = UNKNOWN_EXPERT
    return rows


class _SegmentReader:
    """Reads the arrays of segments directly from Arrow's buffers, without building Python lists of tokens."""

    def __init__(self, column: Any) -> None:
        self._rows = column.offsets.to_numpy()
        self._column = column.values
        self._has_breaks = column.type.value_type.get_field_index("breaks") >= 0
        self._lists = {}
        for name in ("tokens", "sampled", "logprobs", "versions"):
            lists = self._column.field(name)
            self._lists[name] = (lists.offsets.to_numpy(), lists.values.to_numpy(zero_copy_only=False))

    def of_row(self, row: int) -> list[Segment]:
        return [self._segment(place) for place in range(int(self._rows[row]), int(self._rows[row + 1]))]

    def _segment(self, place: int) -> Segment:
        arrays = {name: self._slice(name, place) for name in self._lists}
        data = self._value("experts", place)
        shape = [self._value(name, place) for name in ("expert_layers", "expert_top_k", "expert_bytes")]
        return Segment(
            id=self._value("id", place),
            parent=self._value("parent", place),
            kind=SegmentKind(self._value("kind", place)),
            experts=None if data is None else _unpack_experts(data, len(arrays["tokens"]), *shape),
            breaks=tuple(
                Break(BreakKind(row["kind"]), row["place"], row["detail"])
                for row in (self._value("breaks", place) if self._has_breaks else ())
            ),
            **arrays,
        )

    def _slice(self, name: str, place: int) -> NDArray[Any]:
        offsets, values = self._lists[name]
        # Copied, so that the caller may write to the array and does not keep the whole batch in memory.
        return np.array(values[offsets[place] : offsets[place + 1]])

    def _value(self, name: str, place: int) -> Any:
        return self._column.field(name)[place].as_py()
