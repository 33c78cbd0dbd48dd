"""Every codec is lossless for every bit pattern, close to the entropy, and safe against bytes that are no encoding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from etude.weights import CorruptVersion
from etude.weights.codecs import NEED_BASE, changed, decode, encode, entropy, numbers
from etude.weights.codecs.chunk import encode_as
from etude.weights.codecs.reader import Reader
from etude.weights.tensor import Bytes

CODECS = (*NEED_BASE[1:], "planes", "raw")


@st.composite
def chunks(draw: st.DrawFn) -> tuple[Bytes, Bytes | None, int]:
    """A chunk of arbitrary bytes with a base: none, arbitrary, the same, or with a few bytes changed."""
    itemsize = draw(st.sampled_from([1, 2, 4, 8, 16]))
    size = itemsize * draw(st.sampled_from([0, 1, 2, 3, 5, 8, 31, 2047, 2048, 2049, 5000]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    spread = draw(st.sampled_from([1, 2, 4, 16, 256]))
    new = rng.integers(0, spread, size).astype(np.uint8)
    kind = draw(st.sampled_from(["none", "any", "same", "near", "far"]))
    if kind == "none":
        return new, None, itemsize
    base = rng.integers(0, 256, size).astype(np.uint8) if kind == "any" else new.copy()
    if size and kind in ("near", "far"):
        places = rng.integers(0, size, draw(st.sampled_from([1, 3, max(1, size // 9)])))
        base[places] ^= rng.integers(1, 3 if kind == "near" else 256, places.size).astype(np.uint8)
    new.flags.writeable = base.flags.writeable = draw(st.booleans())
    return new, base, itemsize


@settings(deadline=None, max_examples=150)
@given(chunks())
def test_what_is_stored_comes_back_bit_for_bit(chunk: tuple[Bytes, Bytes | None, int]) -> None:
    new, base, itemsize = chunk
    codec, stored, differing = encode(new, base, itemsize)
    assert len(stored) <= new.size
    for each in {codec, *(c for c in CODECS if base is not None or c not in NEED_BASE)}:
        found = np.full(new.size + 1, 7, np.uint8)[1:]  # not aligned
        stored = b"" if each == "same" else encode_as(each, new, base, itemsize)  # type: ignore[arg-type]
        decode(each, memoryview(stored), base, found, itemsize)
        assert np.array_equal(found, new), each
        if base is not None:
            found = base.copy()
            decode(each, memoryview(stored), found, found, itemsize)
            assert np.array_equal(found, new), f"{each} in place"
    if base is not None:
        differ = (new != base).reshape(-1, itemsize).any(axis=1)
        assert changed(new, base, itemsize) == differing == differ.sum()
        assert (codec == "same") == (not differ.any())


@settings(deadline=None, max_examples=150)
@given(chunks(), chunks(), st.sampled_from((*CODECS, "same", "delta")), st.binary(max_size=60), st.integers(0, 10**9))
def test_bytes_that_are_no_encoding_are_refused_or_stay_within_the_chunk(
    chunk: tuple[Bytes, Bytes | None, int],
    other: tuple[Bytes, Bytes | None, int],
    codec: str,
    rubbish: bytes,
    place: int,
) -> None:
    """Decoding checks no array's bounds, so what it reads has to be checked before. Tried are rubbish, and an encoding
    of another chunk, with a bit flipped or not."""
    new, base, itemsize = chunk
    damaged = bytearray(rubbish)
    if place % 3 and codec in CODECS and (other[1] is not None or codec not in NEED_BASE):
        damaged = bytearray(encode_as(codec, *other))  # type: ignore[arg-type]
        if damaged and place % 3 == 1:
            damaged[place % len(damaged)] ^= 1 << place % 8
    refused_outside_of_it(codec, damaged, base, new.size, itemsize)


def test_encodings_that_reach_too_far_are_refused() -> None:
    base = np.zeros(5000, np.uint8)
    ones, nothing = np.full(2500, 255, np.uint8), np.zeros(0, np.uint16)
    few = np.ones(2499, np.uint16)
    far = np.array([0, 2499], np.uint32)
    for codec, stored in (
        ("packed4", entropy.write(ones[:625]) + numbers.write(few)),
        ("packed2", entropy.write(ones[:1250]) + numbers.write(nothing)),
        ("packed4", entropy.write(ones[:624]) + numbers.write(np.ones(2500, np.uint16))),
        ("gaps", numbers.write(far) + numbers.write(few[:2])),
        ("gaps", numbers.write(far) + numbers.write(few[:1])),
        ("numbers", numbers.write(few)),
        ("planes", entropy.write(ones) + entropy.write(ones[1:])),
        ("raw", bytes(4999)),
        ("raw", bytes(5001)),
    ):
        assert refused_outside_of_it(codec, bytearray(stored), base, 5000, 2), codec


def refused_outside_of_it(codec: str, stored: bytearray, base: Bytes | None, size: int, itemsize: int) -> bool:
    """Decode, and check that nothing around the chunk was written. Return whether it was refused."""
    around = np.full(size + 128, 7, np.uint8)
    refused = False
    try:
        decode(codec, memoryview(stored), base, around[64 : size + 64], itemsize)
    except CorruptVersion:
        refused = True
    assert (np.concatenate([around[:64], around[size + 64 :]]) == 7).all()
    return refused


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 2**20), min_size=1, max_size=256), st.integers(1, 9000), st.integers(0, 2**32))
def test_any_histogram_is_coded_within_a_hundredth_of_its_entropy(weights: list[int], size: int, seed: int) -> None:
    shares = (np.array(weights) + 1e-9) / (sum(weights) + 1e-9 * len(weights))
    symbols = np.random.default_rng(seed).choice(len(weights), size, p=shares).astype(np.uint8)
    block = entropy.write(symbols)
    reader = Reader(memoryview(block))
    assert np.array_equal(entropy.read(reader, size), symbols)
    reader.end()
    header = 26 + 4 * np.unique(symbols).size
    assert len(block) <= min(size + 4, 1.01 * bits_of(symbols) / 8 + header)


@given(st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 300), max_size=80))
def test_numbers_of_every_size_round_trip(given_: list[int]) -> None:
    values = np.array(given_, np.uint32)
    reader = Reader(memoryview(numbers.write(values)))
    assert np.array_equal(numbers.read(reader, 80, "<u4"), values)
    reader.end()


def bits_of(values: NDArray[np.unsignedinteger]) -> float:  # type: ignore[type-arg]
    """Return the entropy of a histogram times the number of values."""
    counts = np.unique(values, return_counts=True)[1]
    return float(-(counts * np.log2(counts / values.size)).sum())


def bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    words = values.view(np.uint32)
    return ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype(np.uint16)


ROUNDED = {
    "bf16": bf16,
    "fp16": lambda values: values.astype(np.float16).view(np.uint16),
    "fp32": lambda values: values.view(np.uint32),
    "fp8": lambda values: (bf16(values * 30) >> 4).astype(np.uint8),  # e4m3 but for its range
    "int4": lambda values: packed_int4(values),
}


def packed_int4(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    codes = np.clip(np.rint(values * 120) + 8, 0, 15).astype(np.uint8)
    return codes[::2] | codes[1::2] << 4


@pytest.mark.parametrize("dtype", ROUNDED)
@pytest.mark.parametrize("rate", [2e-7, 2e-6, 2e-5, 1e-4, 1e-3])
def test_an_optimizer_step_is_stored_within_a_tenth_of_the_bound(dtype: str, rate: float) -> None:
    """The bound is the order-0 entropy of the differences. In fp32 nearly all are different ones, so their density is
    taken from a histogram with 32 bins an octave."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal(600_000, dtype=np.float32) * np.float32(0.02)
    step = (rng.integers(0, 2, values.size) * 2 - 1) * rng.random(values.size) * rate
    old, new = (ROUNDED[dtype](v.astype(np.float32)) for v in (values, values + step))
    difference = (new - old).view(f"i{new.itemsize}").astype(np.int64)
    words = (difference << 1 ^ difference >> 63).astype(np.uint64)
    dropped = np.maximum(np.log2(words + 1.0).astype(np.int64) - 6, 0)
    bound = (bits_of((words >> dropped.astype(np.uint64)) + (dropped << 32).astype(np.uint64)) + dropped.sum()) / 8
    raw_new, raw_old = new.view(np.uint8), old.view(np.uint8)
    codec, stored, _ = encode(raw_new, raw_old, new.itemsize)
    sizes = {c: len(encode_as(c, raw_new, raw_old, new.itemsize)) for c in CODECS}  # type: ignore[arg-type]
    assert len(stored) <= min(1.02 * min(sizes.values()) + raw_new.size / 1500, raw_new.size), (codec, sizes)
    if difference.any():
        assert len(stored) <= 1.1 * bound + 120, (codec, bound, sizes)
