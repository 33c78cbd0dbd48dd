"""Compiles the kernels for compute capability 9.0, which takes no GPU, and prints what instructions their PTX has.

A process of its own, in which Triton's kernels are not interpreted.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from etude.model.precision.kernels.in_triton.grouped import (
    CONFIGS,
    _grouped_mm,
    _grouped_wgrad,
    _grouped_wgrad_of_codes,
)
from etude.model.precision.kernels.in_triton.permute import STRIDE, _gate_gradients, _permute, _unpermute
from etude.model.precision.kernels.in_triton.quantise import TILINGS, _quantise_rows, _quantise_tiles

INSTRUCTIONS = {
    "wgmma": r"wgmma\.mma_async",
    "older_mma": r"\bmma\.sync",
    "bulk_copies": r"cp\.async\.bulk\.tensor",
    "ieee_divisions": r"div\.rn\.f32",
    "other_divisions": r"div\.(?:full|approx)|rcp\.approx",
    "to_e4m3": r"cvt\.rn\.satfinite\.e4m3x2\.f32",
    "other_to_e4m3": r"cvt\.(?!rn\.satfinite)[a-z.]*\.e4m3x2\.f32",
    "multiply_adds": r"fma\.rn\.f32",
    "wide_loads": r"ld\.global\.v4",
}


def found_in(kernel: Any, types: dict[str, str], constants: dict[str, Any], **options: Any) -> dict[str, int]:
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    # As a launch says it of pointers and sizes of whole pieces of 16.
    divisible = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name not in constants}
    positions = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, constexprs=positions, attrs=divisible)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    return {name: len(re.findall(pattern, made.asm["ptx"])) for name, pattern in INSTRUCTIONS.items()}


def matmul(kind: str, config: triton.Config, *, turned: bool) -> dict[str, int]:
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    wgrad, kind = kind.startswith("wgrad "), kind.removeprefix("wgrad ")
    numbers = "*bf16" if kind == "bf16" else "*fp8e4nv"
    scales = {"bf16": "*bf16", "mxfp8": "*u8"}.get(kind, "*fp32")
    types = {"a": numbers, "b": numbers, "out": "*i16", "a_scales": scales, "b_scales": scales, "ends": "*i32"}
    if wgrad and kind == "bf16":
        return found_in(_grouped_wgrad, types, dict(config.kwargs), **options)
    if wgrad:
        return found_in(_grouped_wgrad_of_codes, types, {"KIND": kind, **config.kwargs}, **options)
    constants = {"KIND": kind, "TURNED": turned, "EXPERTS": 64, **config.kwargs}
    return found_in(_grouped_mm, types, constants, **options)


def tiles(format: str, x: str, *, swiglu: bool, columns: bool) -> dict[str, int]:
    tiling = TILINGS[format]
    height, width, warps = tiling.both if columns else tiling.rows
    scales = "*u8" if tiling.mx else "*fp32"
    types = {"x": x, "up": x, "codes": "*u8", "turned": "*u8", "scales": scales, "turned_scales": scales}
    shape = {"TALL": tiling.tall, "WIDE": tiling.wide, "TILE_ROWS": height, "TILE_COLUMNS": width}
    constants = {**shape, "MX": tiling.mx, "SWIGLU": swiglu, "COLUMNS": columns}
    return found_in(_quantise_tiles, types, constants, num_warps=warps, enable_fp_fusion=False)


def rows(four: bool, x: str, *, given: bool, swiglu: bool) -> dict[str, int]:
    types = {"x": x, "up": x, "codes": "*u8", "scales": "*u8" if four else "*fp32", "outers": "*fp32"}
    constants = {"FOUR": four, "GIVEN": given, "SWIGLU": swiglu, "HELD": 4096}
    return found_in(_quantise_rows, types, constants, num_warps=4, enable_fp_fusion=False)


def moved(kernel: Any, **constants: Any) -> dict[str, int]:
    words = dict.fromkeys(("x", "y", "grads", "gates"), "*i16")
    indices = dict.fromkeys(("rows", "tokens"), "*i32")
    sums = kernel is _gate_gradients
    types = {**words, **indices, "out": "*fp32" if sums else "*i16"}
    return found_in(kernel, types, {**constants, "STRIDE": STRIDE}, num_warps=4, enable_fp_fusion=sums)


def main() -> None:
    """What a launch may ask for: each configuration that is tried, under each flag, of words of bf16 and of fp32."""
    made = {}
    for kind, configs in CONFIGS.items():
        for turned in (False, True) if kind == "bf16" else (False,):  # no others' weights may be turned
            named = f"{kind}{' turned' if turned else ''}"
            made |= {f"{named} {i}": matmul(kind, config, turned=turned) for i, config in enumerate(configs)}
    for of, x, swiglu in (("", "*i16", False), (" of fp32", "*i32", False), (" of swiglu", "*i16", True)):
        for format in TILINGS:
            for columns in (False, True):
                name = f"tiles {format}{' and columns' if columns else ''}{of}"
                made[name] = tiles(format, x, swiglu=swiglu, columns=columns)
        made[f"rows nvfp4{of}"] = rows(True, x, given=False, swiglu=swiglu)
        made[f"rows fp8{of}"] = rows(False, x, given=False, swiglu=swiglu)
    made["rows nvfp4 given"] = rows(True, "*i16", given=True, swiglu=False)
    for gated in (False, True):
        made[f"permute{' gated' if gated else ''}"] = moved(_permute, GATED=gated)
        made[f"unpermute{' gated' if gated else ''}"] = moved(_unpermute, GATED=gated, CHOICES=2)
    made["gate gradients"] = moved(_gate_gradients)
    sys.stdout.write(json.dumps(made) + "\n")


if __name__ == "__main__":
    main()
