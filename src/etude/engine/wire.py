"""Engine messages as bytes, between processes that share neither an interpreter nor trust: no pickle.

A frame is `EW1\\n`, the length of the head (4 bytes, little-endian), the head in JSON, and the bytes of its arrays, one
after another, little-endian. In the head, {"is": NAME, field: value, ...} is a message of protocol.py, {"is": NAME,
"says": text} one of its errors, and {"array": type, "shape": [...]} an array.

Invariants (property-tested): unpack(pack(value)) equals value, types included; any other bytes raise WireError, and
never build anything but messages, numbers, texts, lists and dictionaries.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from etude.engine import protocol
from etude.engine.protocol import EngineError

MAGIC = b"EW1\n"
_LENGTH = struct.Struct("<I")
_MESSAGES: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        *(protocol.Sampling, protocol.GenerateRequest, protocol.Usage, protocol.Generation, protocol.Piece),
        *(protocol.Refusal, protocol.Delivery, protocol.EngineInfo, protocol.EngineStats),
    )
}
_FIELDS = {name: {field.name: field for field in fields(kind)} for name, kind in _MESSAGES.items()}
_ERRORS = {
    kind.__name__: kind for kind in vars(protocol).values() if isinstance(kind, type) and issubclass(kind, EngineError)
}
_TYPES = {name: np.dtype(kind) for name, kind in (("int32", "<i4"), ("float32", "<f4"), ("uint16", "<u2"))}


_Reading = tuple[Callable[[Any], bool], Callable[[Any], Any]]
_Readings = tuple[str, list[_Reading]]


class WireError(EngineError):
    """Bytes that are no frame of this version, or a value that a frame cannot hold."""


def pack(value: Any) -> bytes:
    """Return a frame of a message, an array, an EngineError, or JSON values and lists and dictionaries of them all."""
    arrays: list[np.ndarray[Any, Any]] = []
    try:
        head = json.dumps(_written(value, arrays), allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise WireError(f"a frame cannot hold this {type(value).__name__}: {error}") from error
    return b"".join((MAGIC, _LENGTH.pack(len(head)), head, *(array.tobytes() for array in arrays)))


def unpack(frame: bytes) -> Any:
    start = len(MAGIC) + _LENGTH.size
    if frame[: len(MAGIC)] != MAGIC or len(frame) < start:
        raise WireError(f"not a frame: expected it to begin with {MAGIC!r} and a length, found {frame[:8]!r}")
    end = start + _LENGTH.unpack_from(frame, len(MAGIC))[0]
    if end > len(frame):
        raise WireError(f"a frame was cut off: its head ends at byte {end}, the frame at {len(frame)}")
    try:
        arrays = _Arrays(frame, end)
        value = _read(json.loads(frame[start:end], parse_constant=_no_number), arrays)
    except (ValueError, RecursionError) as error:
        raise WireError(f"the head of a frame is not what pack() writes: {error}") from error
    if arrays.at != len(frame):
        raise WireError(f"a frame has {len(frame) - arrays.at} bytes more than its arrays")
    return value


def _written(value: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
    if isinstance(value, np.ndarray):
        name = value.dtype.name
        if name not in _TYPES:
            raise TypeError(f"arrays of {name} are not sent, only of {', '.join(_TYPES)}")
        arrays.append(value.astype(_TYPES[name], copy=False))
        return {"array": name, "shape": list(value.shape)}
    if isinstance(value, EngineError):
        known = next(kind for kind in type(value).__mro__ if kind.__name__ in _ERRORS)
        return {"is": known.__name__, "says": str(value)}
    kind = type(value)
    if _MESSAGES.get(kind.__name__) is kind:
        return {
            "is": kind.__name__,
            **{name: _written(getattr(value, name), arrays) for name in _FIELDS[kind.__name__]},
        }
    if isinstance(value, list | tuple):
        return [_written(one, arrays) for one in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value) or value.keys() & {"is", "array"}:
            raise TypeError(
                'a dictionary has keys that are no text, or "is" or "array", which name messages and arrays'
            )
        return {key: _written(one, arrays) for key, one in value.items()}
    return value


@dataclass(slots=True)
class _Arrays:
    frame: bytes
    at: int

    def next(self, name: Any, shape: Any) -> np.ndarray[Any, Any]:
        if not isinstance(name, str) or name not in _TYPES:
            raise ValueError(f"an array of {name!r}")
        if not isinstance(shape, list) or not all(type(size) is int and 0 <= size < 1 << 40 for size in shape):
            raise ValueError(f"an array of shape {shape!r}")
        count = 1
        for size in shape:
            count *= size
        nbytes = count * _TYPES[name].itemsize
        if nbytes > len(self.frame) - self.at:
            raise ValueError(f"an array of {nbytes} bytes where {len(self.frame) - self.at} are left")
        flat = np.frombuffer(self.frame, _TYPES[name], count, self.at)
        self.at += nbytes
        # Copied, so that it is writable and does not keep the frame.
        return flat.astype(name, copy=True).reshape(shape)


def _read(value: Any, arrays: _Arrays) -> Any:
    if isinstance(value, list):
        return [_read(one, arrays) for one in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        if value.keys() != {"array", "shape"}:
            raise ValueError(f"an array with the keys {sorted(value)}")
        return arrays.next(value["array"], value["shape"])
    if "is" not in value:
        return {key: _read(one, arrays) for key, one in value.items()}
    name = value.pop("is")
    if not isinstance(name, str) or name not in {**_MESSAGES, **_ERRORS}:
        raise ValueError(f"no message is called {name!r}")
    if name in _ERRORS:
        if value.keys() != {"says"} or not isinstance(value["says"], str):
            raise ValueError(f'{name} needs the text "says" and nothing else')
        return _ERRORS[name](value["says"])
    return _message(name, {key: _read(one, arrays) for key, one in value.items()})


def _message(name: str, found: dict[str, Any]) -> Any:
    kind, known = _MESSAGES[name], _FIELDS[name]
    if unknown := sorted(found.keys() - known.keys()):
        raise ValueError(f"{name} has no field {unknown[0]!r}")
    if missing := sorted(key for key in known.keys() - found.keys() if _required(known[key])):
        raise ValueError(f"{name} lacks {missing[0]!r}")
    readings = _readings_of(name)
    return kind(**{key: _as(readings[key], one, f"{name}.{key}") for key, one in found.items()})


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _as(field: _Readings, value: Any, where: str) -> Any:
    """Return a value as the type that its field declares. Raises ValueError if it has another."""
    for fits, convert in field[1]:
        if fits(value):
            return convert(value)
    raise ValueError(f"{where} is {type(value).__name__} where {field[0]} belongs")


@cache
def _readings_of(name: str) -> dict[str, _Readings]:
    """Return the name of each field's type, and its readings."""
    hints = get_type_hints(_MESSAGES[name])
    return {key: (getattr(hints[key], "__name__", str(hints[key])), _readings(hints[key])) for key in _FIELDS[name]}


def _readings(hint: Any) -> list[_Reading]:
    """Return, for each type that `hint` allows, what tells whether a value fits, and what converts it."""
    origin, given = get_origin(hint), get_args(hint)
    if origin is UnionType:
        return [reading for one in given for reading in _readings(one)]
    if origin is np.ndarray:
        dtype = np.dtype(get_args(given[1])[0])
        return [(lambda value: isinstance(value, np.ndarray) and value.dtype == dtype, _unchanged)]
    if origin in (list, tuple):
        inner = _readings(given[0])
        return [
            (
                lambda value: isinstance(value, list) and all(any(fits(one) for fits, _ in inner) for one in value),
                lambda value: origin(value),
            )
        ]
    if hint is float:
        return [(lambda value: type(value) in (int, float), float)]
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return [(lambda value: isinstance(value, str) and value in list(hint), hint)]
    if hint is EngineError:
        return [(lambda value: isinstance(value, EngineError), _unchanged)]
    # `type is`, since true is an int too.
    return [(lambda value: type(value) is (NoneType if hint is None else hint), _unchanged)]


def _unchanged(value: Any) -> Any:
    return value


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number")
