"""Converts the element types of the low-precision formats, E4M3, E2M1 and E8M0, to and from fp32.

Invariant: every conversion to E4M3 or E2M1 rounds once, to nearest with ties to even, and saturates; E8M0, which holds
only scales, is rounded up. Every conversion to fp32 is exact. Infinities saturate like any large number. NaN is treated
as each function says. Subnormals are kept in both directions.

Arithmetic is used instead of tables: per number on one core, a table lookup costs 0.5 to 2.4 ns, torch.bucketize
8.3 ns, and one pass of arithmetic over numbers in cache 0.06 to 0.1 ns. A device that flushes subnormals of fp32 would
lose only E8M0's smallest power, 2^-127.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from etude.model.errors import CannotQuantise

_NAN = 0x7FC00000
_NAN_E4M3 = 0x7F
_EXPONENT = 0x7F800000
_MANTISSA_BITS = 23
_BIAS = 127


@dataclass(frozen=True, slots=True)
class Element:
    """A small floating-point type with a sign and subnormals, but without infinities."""

    mantissa_bits: int
    smallest_normal: float
    largest: float

    @property
    def magic(self) -> float:
        """Factor for rounding by addition. Added to a value, this factor times the largest power of two not above the
        value gives a sum that fp32 stores only to the element type's precision at the value."""
        return 2.0 ** (_MANTISSA_BITS - self.mantissa_bits)


E4M3 = Element(mantissa_bits=3, smallest_normal=2.0**-6, largest=448.0)
E2M1 = Element(mantissa_bits=1, smallest_normal=1.0, largest=6.0)
_E2M1_CONSTANT = torch.tensor(((_MANTISSA_BITS - E2M1.mantissa_bits) << _MANTISSA_BITS) - 2 * _BIAS, dtype=torch.int32)
"""To round a magnitude, `to_e2m1` adds a number to it. This is the part of that number's bits that is the same for all
magnitudes. The tensor is created once, because creating it takes half as long as a pass over a tensor's numbers."""


def round_to_(values: Tensor, element: Element) -> Tensor:
    """Round each fp32 value in place to the nearest value of the element type. NaN stays NaN; zero loses its sign."""
    values.clamp_(-element.largest, element.largest)
    # The largest power of two not above each magnitude, but at least the element's smallest normal number.
    power = (values.view(torch.int32) & _EXPONENT).view(torch.float32).clamp_min_(element.smallest_normal)
    # 1.5 keeps the sum in the binade of the constant, whatever the sign of the value.
    return values.add_(power, alpha=1.5 * element.magic).sub_(power, alpha=1.5 * element.magic)


def to_e4m3(values: Tensor) -> Tensor:
    """Convert fp32 to float8_e4m3fn; `values` is overwritten. NaN becomes a NaN of either sign."""
    # Before torch 2.12 casts do not saturate by themselves.
    return values.clamp_(-E4M3.largest, E4M3.largest).to(torch.float8_e4m3fn)


def from_e4m3(codes: Tensor) -> Tensor:
    """Convert float8_e4m3fn to fp32.

    The codes are shifted into fp16 and scaled by the difference of the exponent biases: 0.1 ns per number, where
    torch's own cast takes 3.8 ns.
    """
    # Sign-extended, so that the shift moves the sign to fp16's sign bit; the mask clears the copy of the sign below it.
    bits = codes.view(torch.int8).to(torch.int16).bitwise_left_shift_(7).bitwise_and_(-0x4001)
    values = bits.view(torch.float16).to(torch.float32).mul_(2.0**8)
    if has_nan(codes):
        values.masked_fill_(codes.view(torch.uint8).bitwise_and(_NAN_E4M3) == _NAN_E4M3, torch.nan)
    return values


def has_nan(codes: Tensor) -> bool:
    """Whether float8_e4m3fn codes contain NaN. The maximum of the bytes shows it faster than comparing each."""
    return codes.numel() > 0 and int(codes.view(torch.uint8).bitwise_and(_NAN_E4M3).max()) == _NAN_E4M3


def to_e2m1(magnitudes: Tensor) -> Tensor:
    """Convert fp32 magnitudes below 7 to 3-bit E2M1 codes (uint8), NaN to any code; `magnitudes` is overwritten."""
    binade = (magnitudes.view(torch.int32) >> _MANTISSA_BITS).clamp_min_(_BIAS)
    # A constant for each binade: its last fp32 bit has the weight of one E2M1 step there, and its last bits count the
    # two codes of each lower binade. Adding it rounds the magnitude, and the last bits of the sum are the code.
    torch.add(_E2M1_CONSTANT, binade, alpha=(1 << _MANTISSA_BITS) + 2, out=binade)
    return magnitudes.add_(binade.view(torch.float32)).view(torch.int32).to(torch.uint8)


def pack_pairs(codes: Tensor) -> Tensor:
    """Pack pairs of 4-bit codes into bytes, the first in the low half. `codes` is overwritten."""
    pairs = codes.view(torch.int16)
    return pairs.bitwise_or_(pairs >> 4).to(torch.uint8)


def from_e2m1(packed: Tensor) -> Tensor:
    """Convert E2M1 codes packed two per byte to fp32, by way of fp16 like `from_e4m3`."""
    byte = packed.to(torch.int32)
    pairs = (byte & 0x0F).bitwise_or_(byte.bitwise_and_(0xF0).bitwise_left_shift_(12))
    bits = (pairs & 0x00070007).bitwise_left_shift_(9).bitwise_or_(pairs.bitwise_and_(0x00080008) << 12)
    return bits.view(torch.float16).to(torch.float32).mul_(2.0**14)


def e8m0_not_below(absmax: Tensor, largest: float) -> Tensor:
    """Return the E8M0 codes (uint8) of absmax / largest, rounded up to a power of two.

    `absmax` is fp32. The result is exact, because it is computed from the bits of `absmax` without a rounded quotient
    or logarithm. The smallest code, 0, is 2^-127. Infinity becomes the largest power, 2^127; NaN stays NaN.
    """
    bits, limit = absmax.view(torch.int32), int(torch.tensor(largest).view(torch.int32))
    carry = ~limit & ((1 << _MANTISSA_BITS) - 1)
    codes = (bits + carry).bitwise_right_shift_(_MANTISSA_BITS).sub_((limit >> _MANTISSA_BITS) - _BIAS).clamp_min_(0)
    if bits.numel() and int(bits.max()) >= _EXPONENT:
        codes.masked_fill_(bits == _EXPONENT, 254).masked_fill_(bits > _EXPONENT, 255)
    return codes.to(torch.uint8)


def from_e8m0(codes: Tensor) -> Tensor:
    """Convert E8M0 codes (uint8) to fp32. 255 is NaN; 0 is 2^-127, a subnormal of fp32."""
    bits = codes.to(torch.int32).bitwise_left_shift_(_MANTISSA_BITS)
    return _with_special_values(bits, codes, subnormal=0).view(torch.float32)


def reciprocal_of_e8m0(codes: Tensor) -> Tensor:
    """Convert E8M0 codes (uint8) to their reciprocals in fp32, which are exact. The reciprocal of NaN is NaN."""
    bits = (254 - codes.to(torch.int32)).bitwise_left_shift_(_MANTISSA_BITS)
    return _with_special_values(bits, codes, subnormal=254).view(torch.float32)


def _with_special_values(bits: Tensor, codes: Tensor, subnormal: int) -> Tensor:
    """Correct fp32 numbers that were made from E8M0 codes (powers of two) by setting exponent bits alone. `bits` has
    the numbers' bits as integers. Two values need mantissa bits too and are overwritten: 2^-127, which is subnormal,
    and NaN.

    `subnormal` is the code that stands for 2^-127; code 255 is NaN. Most tensors have neither code, so the maximum and
    the minimum are looked at first, which is faster than comparing each code.
    """
    if codes.numel() and (int(codes.max()) >= 254 or int(codes.min()) == 0):
        bits.masked_fill_(codes == subnormal, 1 << (_MANTISSA_BITS - 1)).masked_fill_(codes == 255, _NAN)
    return bits


def significant_bits_(values: Tensor, bits: int) -> Tensor:
    """Round fp32 numbers in place to `bits` significant bits (24 keeps all), to emulate inexact reciprocals."""
    if not 1 <= bits <= _MANTISSA_BITS + 1:
        raise CannotQuantise(f"fp32 has 1 to {_MANTISSA_BITS + 1} significant bits; {bits} were asked for")
    dropped = _MANTISSA_BITS + 1 - bits
    pattern = values.view(torch.int32)
    pattern.add_((1 << dropped) >> 1).bitwise_and_(-1 << dropped)
    return values
