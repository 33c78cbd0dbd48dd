"""Round trips of every dtype, shape and bit pattern, NaN payloads included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.weights import ITEM_SIZES, CorruptVersion, RawTensor, WeightsError
from etude.weights.codec import changed, decode, encode
from etude.weights.tensor import bytes_of

SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[RawTensor, RawTensor | None]:
    """A tensor of arbitrary bytes, and a base: none, arbitrary, or the same with a few bytes changed."""
    dtype, shape = draw(st.sampled_from(sorted(ITEM_SIZES))), draw(SHAPES)
    size = bytes_of(dtype, shape)
    new = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8)
    kind = draw(st.sampled_from(["none", "any", "near", "other shape"]))
    if kind == "none":
        return RawTensor(dtype, shape, new), None
    if kind == "other shape":
        return RawTensor(dtype, shape, new), RawTensor("uint8", (3,), np.zeros(3, np.uint8))
    base = new.copy()
    if kind == "any":
        base = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8)
    elif size:
        for place in draw(st.lists(st.integers(0, size - 1), max_size=3)):
            base[place] ^= draw(st.integers(1, 255))
    return RawTensor(dtype, shape, new), RawTensor(dtype, shape, base)


@given(pairs())
def test_what_is_stored_comes_back_bit_for_bit(pair: tuple[RawTensor, RawTensor | None]) -> None:
    new, base = pair
    codec, stored = encode(new, base)
    assert len(stored) <= new.data.size
    assert decode(codec, stored, new.dtype, new.shape, base).equals(new)
    if base is None or not base.like(new):
        assert codec in ("planes", "raw")
        assert changed(new, base) == new.data.size // new.itemsize
    else:
        elements = [t.data.reshape(-1, t.itemsize) for t in (new, base)]
        assert changed(new, base) == int((elements[0] != elements[1]).any(axis=1).sum())


@pytest.mark.parametrize(("share", "most"), [(0.0, 0.0), (0.01, 0.03), (0.1, 0.12), (1.0, 0.2)])
def test_a_small_step_of_bf16_is_stored_small(share: float, most: float) -> None:
    rng = np.random.default_rng(0)
    old = rng.integers(0, 2**16, 50_000).astype(np.uint16)
    step = np.where(rng.random(50_000) < share, rng.choice([-1, 1], 50_000), 0).astype(np.int16)
    tensors = [RawTensor("bfloat16", (50_000,), words.view(np.uint8)) for words in (old + step.view(np.uint16), old)]
    codec, stored = encode(*tensors)
    assert codec == ("delta" if share else "same")
    assert len(stored) <= most * 100_000


@given(pairs(), st.binary(max_size=40), st.sampled_from(["same", "delta", "planes", "raw"]))
def test_rubbish_is_refused_or_at_least_of_the_right_size(
    pair: tuple[RawTensor, RawTensor | None], stored: bytes, codec: str
) -> None:
    new, base = pair
    try:
        got = decode(codec, stored, new.dtype, new.shape, base)  # type: ignore[arg-type]
    except CorruptVersion:
        return
    assert got.like(new)


def test_a_tensor_must_fit_its_bytes() -> None:
    with pytest.raises(WeightsError, match="unknown dtype"):
        RawTensor("bf16", (1,), np.zeros(2, np.uint8))
    with pytest.raises(WeightsError, match="needs a flat uint8 array of 6"):
        RawTensor("bfloat16", (3,), np.zeros(4, np.uint8))
    with pytest.raises(WeightsError, match="contiguous"):
        RawTensor("bfloat16", (3,), np.zeros(12, np.uint8)[::2])
