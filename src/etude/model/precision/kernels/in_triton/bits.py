"""Conversions of small number types inside Triton kernels: the arithmetic of `elements.py`, applied to one tile.

Kernels get numbers as integer words with the same bits (int16 for bf16, int32 for fp32), so that moving a number never
rounds it. Compiled kernels convert with the device's own instructions: PTX specifies that they round to nearest, ties
to even, and saturate. Triton's interpreter does not round to nearest when it narrows a number, so these functions round
by integer arithmetic when interpreted.
"""

from __future__ import annotations

import triton
import triton.language as tl

COMPILED = tl.constexpr(not triton.knobs.runtime.interpret)
INFINITY = tl.constexpr(0x7F800000)
SMALLEST_FP8_SCALE = tl.constexpr(2.0**-126)
SMALLEST_OUTER = tl.constexpr(2.0**-120)
NAN = tl.constexpr(0x7FC00000)
"""The fp32 bits of NaN, as an integer. Triton refuses to run a kernel if a global constant differs from its value at
compilation. A float NaN would always differ, because it is unequal to itself."""


@triton.jit
def wide(words):
    """Convert integer words, the bits of bf16 or fp32 numbers, to fp32."""
    if words.dtype == tl.int16:
        return (words.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        return words.to(tl.float32, bitcast=True)


@triton.jit
def bf16_words(values):
    """Convert fp32 to the nearest bf16 numbers, returned as integer words. NaN stays NaN."""
    if COMPILED:
        return values.to(tl.bfloat16).to(tl.int16, bitcast=True)
    else:
        bits = values.to(tl.int32, bitcast=True)
        nearest = bits + 0x7FFF + ((bits >> 16) & 1)
        return (tl.where(values != values, bits | 0x400000, nearest) >> 16).to(tl.int16)


@triton.jit
def words_for(out, values):
    """Convert fp32 to the integer words that the pointer `out` stores: int16 for bf16, int32 for fp32."""
    if out.dtype.element_ty == tl.int16:
        return bf16_words(values)
    else:
        return values.to(tl.int32, bitcast=True)


@triton.jit
def magnitudes(values):
    """Return the bits of |values| as integers. They sort as the magnitudes do, followed by infinity and then NaN."""
    return values.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def e4m3_codes(values):
    """Convert fp32 to E4M3 codes (uint8), saturating. NaN becomes 0x7F."""
    if COMPILED:
        return values.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    else:
        bits = values.to(tl.int32, bitcast=True)
        size = tl.minimum(tl.abs(values), 448.0)
        # 2^20 times the power of two at or below the number: its last fp32 bit has the weight of one E4M3 step there.
        # Its last bits count the 8 codes of each lower binade, so that the last bits of the sum are the code.
        power = tl.maximum(magnitudes(size) & INFINITY, 0x3C800000)
        constant = (power + (power >> 20) + ((20 << 23) - 8 * 121)).to(tl.float32, bitcast=True)
        code = ((size + constant).to(tl.int32, bitcast=True) & 0x7F) | ((bits >> 24) & 0x80)
        return tl.where(values != values, 0x7F, code).to(tl.uint8)


@triton.jit
def normal_e4m3(codes):
    """Convert E4M3 codes of normal positive numbers (8 to 126) to fp32, and code 127 to NaN."""
    bits = (codes.to(tl.int32) << 20) + (120 << 23)
    return tl.where(codes == 0x7F, NAN, bits).to(tl.float32, bitcast=True)


@triton.jit
def e2m1_codes(values):
    """Convert fp32 to 4-bit E2M1 codes (int32), saturating. NaN becomes an arbitrary code."""
    size = tl.minimum(tl.abs(values), 6.0)
    binade = tl.maximum(size.to(tl.int32, bitcast=True) >> 23, 127)
    # As in `e4m3_codes`: 2^22 times the power of two below, and the last bits count the 2 codes of each lower binade.
    constant = (binade * ((1 << 23) + 2) + ((22 << 23) - 2 * 127)).to(tl.float32, bitcast=True)
    code = (size + constant).to(tl.int32, bitcast=True) & 7
    return code | ((values.to(tl.int32, bitcast=True) >> 28) & 8)


@triton.jit
def e8m0_not_below(largest):
    """Return absmax / 448 rounded up to a power of two, as E8M0 code (int32). `largest` holds absmax's fp32 bits."""
    codes = tl.maximum(((largest + 0x1FFFFF) >> 23) - 8, 0)
    return tl.where(largest < INFINITY, codes, 254 + (largest > INFINITY).to(tl.int32))


@triton.jit
def reciprocal_of_e8m0(codes):
    """Convert E8M0 codes to their reciprocals in fp32, which are exact; NaN gives NaN."""
    bits = tl.maximum((254 - codes) << 23, 1 << 22)
    return tl.where(codes == 255, NAN, bits).to(tl.float32, bitcast=True)


@triton.jit
def power_of_e8m0(codes):
    """Convert E8M0 codes (uint8) to fp32. 255 is NaN."""
    codes = codes.to(tl.int32)
    bits = tl.maximum(codes << 23, 1 << 22)
    return tl.where(codes == 255, NAN, bits).to(tl.float32, bitcast=True)


@triton.jit
def scale_for(largest, divisor: tl.constexpr, least: tl.constexpr):
    """Return absmax / divisor (IEEE), at least `least`; NaN if absmax is not finite. `largest` holds absmax's fp32
    bits."""
    scale = tl.maximum(tl.div_rn(largest.to(tl.float32, bitcast=True), divisor), least)
    return tl.where(largest < INFINITY, scale.to(tl.int32, bitcast=True), NAN).to(tl.float32, bitcast=True)


@triton.jit
def swiglu(gate, up):
    """Compute silu(gate) * up in fp32, rounding both silu and the product to bf16, as torch does in bf16."""
    silu = wide(bf16_words(tl.div_rn(gate, 1 + tl.exp(-gate))))
    return wide(bf16_words(silu * up))
