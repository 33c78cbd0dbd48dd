"""Frames hold every message exactly, and any other bytes are refused."""

import json
import struct
from contextlib import suppress
from dataclasses import fields, is_dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from etude.engine import protocol, wire
from etude.engine.protocol import (
    ContextExceeded,
    Delivery,
    EngineError,
    EngineInfo,
    EngineOutOfMemory,
    EngineStats,
    GenerateRequest,
    Generation,
    Piece,
    Refusal,
    Sampling,
    StopReason,
    Usage,
)
from etude.engine.wire import MAGIC, WireError, pack, unpack

TEXT = st.text(max_size=8)
COUNT = st.integers(-(2**53), 2**53)
SECONDS = st.floats(allow_nan=False, allow_infinity=False)
ids = arrays(np.int32, st.integers(0, 5))
floats = arrays(np.float32, st.integers(0, 5))
experts = st.none() | arrays(np.uint16, st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 2)))
usages = st.builds(Usage, COUNT, COUNT, COUNT, COUNT, COUNT, SECONDS, SECONDS)
requests = st.builds(
    GenerateRequest,
    TEXT,
    ids,
    st.builds(Sampling, COUNT, st.lists(COUNT, max_size=3).map(tuple), SECONDS, COUNT),
    TEXT,
    COUNT,
)
generations = st.builds(
    Generation, TEXT, ids, floats, ids, st.sampled_from(StopReason), experts, st.integers(0, 9), usages
)
errors = st.builds(
    lambda kind, text: kind(text), st.sampled_from([EngineError, ContextExceeded, EngineOutOfMemory]), TEXT
)
items = generations | st.builds(Piece, TEXT, COUNT, ids, floats, ids) | st.builds(Refusal, TEXT, errors)
messages = (
    requests
    | st.builds(Delivery, COUNT, st.lists(items, max_size=3))
    | st.builds(EngineInfo, COUNT, COUNT, COUNT, COUNT, COUNT, COUNT)
    | st.builds(EngineStats, COUNT, seconds_busy=SECONDS)
    | errors
)
plain = st.none() | st.booleans() | COUNT | SECONDS | TEXT
keys = TEXT.filter(lambda key: key not in ("is", "array"))
values = st.recursive(
    messages | plain | ids, lambda one: st.lists(one, max_size=3) | st.dictionaries(keys, one, max_size=3)
)


def same(one, other):
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    elif is_dataclass(one):
        for field in fields(one):
            same(getattr(one, field.name), getattr(other, field.name))
    elif isinstance(one, list):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            same(*pair)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            same(one[key], other[key])
    elif isinstance(one, EngineError):
        assert str(one) == str(other)
    else:
        assert one == other


@given(values)
def test_what_is_packed_comes_back(value):
    same(unpack(pack(value)), value)


def test_every_message_of_the_protocol_can_be_sent():
    assert {name for name, kind in vars(protocol).items() if is_dataclass(kind)} == wire._MESSAGES.keys()


@settings(max_examples=150)
@given(messages, st.data())
def test_damaged_frames_are_refused_or_hold_a_value(value, data):
    frame = bytearray(pack(value))
    how = data.draw(st.sampled_from(["cut", "grow", "flip"]))
    place = data.draw(st.integers(0, len(frame) - 1))
    if how == "cut":
        frame = frame[:place]
    elif how == "grow":
        frame += b"\0"
    else:
        frame[place] ^= data.draw(st.integers(1, 255))
    if how != "flip":
        with pytest.raises(WireError):
            unpack(bytes(frame))
        return
    with suppress(WireError):  # a flipped bit may spell another text or number, but never what is no value
        pack(unpack(bytes(frame)))


def framed(head, rest=b""):
    raw = head if isinstance(head, bytes) else json.dumps(head).encode()
    return MAGIC + struct.pack("<I", len(raw)) + raw + rest


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (b"", "not a frame"),
        (b"GET / HTTP/1.1\r\n\r\n", "not a frame"),
        (framed(b"{"), "Expecting property name"),
        (framed(b"[" * 100_000), "recursion"),
        (framed(b"\xff"), "utf-8"),
        (framed(b"NaN"), "NaN"),
        (framed({"is": "os.system"}), "no message is called"),
        (framed({"is": ["Piece"]}), "no message is called"),
        (framed({"is": "WireError", "says": "x"}), "no message is called"),
        (framed({"is": "EngineError", "says": "x", "more": 1}), "needs the text"),
        (framed({"is": "Usage", "price": 1}), "no field 'price'"),
        (framed({"is": "Usage", "prompt_tokens": True}), "Usage.prompt_tokens is bool where int"),
        (framed({"is": "Sampling", "max_tokens": 1}), "lacks 'stop'"),
        (framed({"is": "Sampling", "max_tokens": 1, "stop": ["a"]}), "Sampling.stop is list"),
        (framed({"is": "GenerateRequest", "id": "a", "prompt": [1], "sampling": None}), "prompt is list"),
        (framed({"array": "object", "shape": [1]}), "an array of 'object'"),
        (framed({"array": "int32", "shape": [-1]}), "shape"),
        (framed({"array": "int32", "shape": [2**30, 2**30]}), "bytes where 0 are left"),
        (framed({"array": "int32", "shape": [1]}, b"\0" * 5), "1 bytes more"),
    ],
)
def test_bytes_that_are_no_frame_are_refused_in_one_line(frame, says):
    with pytest.raises(WireError, match=says) as caught:
        unpack(frame)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [object(), np.zeros(2), float("nan"), {"is": 1}, {1: 2}, [b"x"]])
def test_what_a_frame_cannot_hold_is_refused(value):
    with pytest.raises(WireError, match="cannot hold"):
        pack(value)
