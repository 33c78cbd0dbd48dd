"""Each small number against ml_dtypes and against rounding in fractions, bit for bit."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch
from tests.model.precision.oracles import ADVERSARIAL, bits_of, e2m1_there, e4m3_there, every_bf16
from torch import Tensor

from etude.model import CannotQuantise
from etude.model.precision.elements import (
    E2M1,
    E4M3,
    Element,
    e8m0_not_below,
    from_e2m1,
    from_e4m3,
    from_e8m0,
    pack_pairs,
    reciprocal_of_e8m0,
    round_to_,
    significant_bits_,
    to_e2m1,
    to_e4m3,
)

BYTES = torch.arange(256, dtype=torch.uint8)


def every_kind() -> Tensor:
    g = torch.Generator().manual_seed(0)
    patterns = torch.randint(-(2**31), 2**31, (1 << 16,), generator=g, dtype=torch.int64).to(torch.int32)
    near = torch.randn(1 << 16, generator=g) * torch.randn(1 << 16, generator=g).exp2()
    return torch.cat([every_bf16().float(), ADVERSARIAL, patterns.view(torch.float32), near, near * 100])


def e4m3(values: Tensor) -> Tensor:
    return to_e4m3(values.clone()).view(torch.uint8)


def e2m1(values: Tensor) -> Tensor:
    return to_e2m1(values.abs().clamp_max(6)) | values.signbit().to(torch.uint8) << 3


def decoded(element: Element, codes: Tensor) -> Tensor:
    if element is E4M3:
        return from_e4m3(codes.view(torch.float8_e4m3fn))
    return from_e2m1(pack_pairs(codes.clone()))


def test_e4m3_is_that_of_ml_dtypes() -> None:
    values = every_kind()
    ours, theirs = e4m3(values), e4m3_there(values)
    nan = values.isnan()
    assert torch.equal(ours[~nan], theirs[~nan])
    assert bool((ours[nan] & 0x7F == 0x7F).all())


def test_e2m1_is_that_of_ml_dtypes() -> None:
    values = every_kind()
    values = values[~values.isnan()]
    assert torch.equal(e2m1(values), e2m1_there(values))


def test_every_code_is_decoded_as_ml_dtypes_does() -> None:
    theirs = torch.from_numpy(BYTES.numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float32))
    assert torch.equal(decoded(E4M3, BYTES).nan_to_num(-1), theirs.nan_to_num(-1))
    packed = torch.stack([BYTES & 15, BYTES >> 4], -1).flatten()
    theirs = torch.from_numpy(packed.numpy().view(ml_dtypes.float4_e2m1fn).astype(np.float32))
    assert torch.equal(bits_of(from_e2m1(BYTES)), bits_of(theirs))


@pytest.mark.parametrize(("element", "encode"), [(E4M3, e4m3), (E2M1, e2m1)])
def test_rounding_in_place_is_encoding_and_decoding(element: Element, encode: type) -> None:
    values = every_kind()
    values = values[~values.isnan()][: 1 << 17]
    rounded = round_to_(values.clone(), element)
    assert torch.equal(rounded, decoded(element, encode(values)))
    assert bool(round_to_(torch.tensor([torch.nan]), element).isnan().all())


def test_e8m0_is_the_least_power_that_is_enough() -> None:
    finite = [v for v in [*every_bf16()[-(2**15) :].float().tolist(), *ADVERSARIAL.tolist()] if 0 <= v < torch.inf]
    codes = e8m0_not_below(torch.tensor(finite), 448.0).tolist()
    for value, code in zip(finite, codes, strict=True):
        needed, power = Fraction(value) / 448, Fraction(2) ** (code - 127)
        assert power >= needed
        assert code == 0 or power / 2 < needed, f"{value}: {code} is more than is needed"


def test_e8m0_of_what_is_no_number() -> None:
    special = torch.tensor([torch.inf, torch.nan, 0.0])
    assert e8m0_not_below(special, 448.0).tolist() == [254, 255, 0]
    negative_nan = torch.tensor([0x7FFFFFFF], dtype=torch.int32).view(torch.float32)
    assert e8m0_not_below(negative_nan, 448.0).tolist() == [255]


def test_e8m0_is_decoded_as_ml_dtypes_does_and_has_exact_reciprocals() -> None:
    theirs = torch.from_numpy(BYTES.numpy().view(ml_dtypes.float8_e8m0fnu).astype(np.float32))
    assert torch.equal(from_e8m0(BYTES)[:255], theirs[:255])
    assert bool(from_e8m0(BYTES)[255].isnan())
    product = from_e8m0(BYTES).double() * reciprocal_of_e8m0(BYTES).double()
    assert bool((product[:255] == 1).all())
    assert bool(product[255].isnan())


def test_fewer_significant_bits() -> None:
    values = torch.tensor([1 / 3, 1.0, 2.0 - 2.0**-20, 1.0 + 2.0**-12])
    assert torch.equal(significant_bits_(values.clone(), 24), values)
    assert significant_bits_(values.clone(), 12).tolist() == [2731 / 8192, 1.0, 2.0, 1.0 + 2.0**-11]
    for bits in (1, 8, 23):
        assert float((significant_bits_(values.clone(), bits) / values - 1).abs().max()) <= 2.0**-bits
    with pytest.raises(CannotQuantise, match="1 to 24"):
        significant_bits_(values, 25)
