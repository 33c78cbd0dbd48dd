"""Measures the kernels at the sizes of K2's experts, as rows {kernel, shape, tflops, gb_s, ratio_bf16, ratio_peak,
max_error}.

- gb_s (memory-bound kernels) counts each byte that must be read or written once. ratio_peak is the share of a large
  copy's bandwidth.
- tflops (matmuls) counts two operations per multiply-add that the experts' loads need. ratio_peak is the share of a
  dense matmul's speed with the numbers that are multiplied, which for mxfp8 are bf16. ratio_bf16 is the time of torch
  in bf16 (`F.grouped_mm`, or the layer made of it) divided by the kernel's; it is missing if torch's failed.
- max_error: for quantisers, the share of bytes that differ from the reference on the CPU. For matmuls, the relative
  difference in norm from the reference on the same device and operands, over some rows of each expert. For a layer, the
  difference from torch's bf16 layer, so it includes the format's own error: the CPU would take minutes for each layer,
  and `check.py` has already compared small ones with it.

A kernel that fails gets a row that says so, and the others follow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from kernel_checks import LAYERS, PAIRS, forward_and_backward, unequal
from torch import Tensor

from bench import Bench, Row, Sizes
from etude.model.placing import place_pairs
from etude.model.precision import FORMATS, NVFP4, BlockFP8, Quantised, dequantise
from etude.model.precision.kernels import IMPLEMENTATIONS, ExpertKernels, choose, reference

CHECKED_ROWS = 256
"""Rows of a quantised matrix that are compared with the reference; a row's codes depend on no row after its block."""


def kernel_rows(device: str, sizes: Sizes, seconds: float) -> Iterator[Row]:
    bench = Bench(device, sizes, time.monotonic() + seconds)
    yield bench.row("copy", f"{sizes.copied} fp32", lambda: _copy(bench))
    yield bench.row("dense bf16", f"{sizes.dense}^3", lambda: _dense(bench, "bf16"))
    yield bench.row("dense fp8", f"{sizes.dense}^3", lambda: _dense(bench, "fp8"))
    yield from _quantisers(bench)
    yield from _moves(bench)
    for experts, rows in sizes.loads:
        yield from _matmuls(bench, "up", experts, rows, sizes.inner, sizes.hidden)
        yield from _matmuls(bench, "down", experts, rows, sizes.hidden, sizes.inner)
    for experts, tokens in sizes.layers:
        yield from _layer(bench, experts, tokens)


def _copy(bench: Bench) -> Row:
    x = torch.randn(bench.sizes.copied, device=bench.device)
    y = torch.empty_like(x)
    bench.copy_gb_s = 2 * x.nbytes / bench.milliseconds(lambda: y.copy_(x)) / 1e6
    return {"gb_s": round(bench.copy_gb_s)}


def _dense(bench: Bench, kind: str) -> Row:
    size = bench.sizes.dense
    a, b = (torch.randn(size, size, device=bench.device).bfloat16() for _ in range(2))
    if kind == "fp8":
        codes, turned = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).mT
        one = torch.ones((), device=bench.device)
        ms = bench.milliseconds(
            lambda: torch._scaled_mm(codes, turned, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
        )
    else:
        ms = bench.milliseconds(lambda: a @ b)
    bench.peak[kind] = 2 * size**3 / ms / 1e9
    return {"tflops": round(bench.peak[kind], 1)}


def _moving(bench: Bench, work: Callable[[], Any], read: int, error: Callable[[Any], float]) -> Row:
    """Measure a memory-bound kernel. `read`: bytes it must read."""
    made = work()
    wrong, written = error(made), _nbytes(made)
    del made
    gb_s = (read + written) / bench.milliseconds(work) / 1e6
    share = round(gb_s / bench.copy_gb_s, 3) if bench.copy_gb_s else None
    return {"gb_s": round(gb_s), "ratio_peak": share, "max_error": wrong}


def _nbytes(made: Any) -> int:
    if isinstance(made, tuple):
        return sum(map(_nbytes, made))
    if isinstance(made, Tensor):
        return made.nbytes
    return sum(
        _nbytes(getattr(made, part.name)) for part in fields(made) if isinstance(getattr(made, part.name), Tensor)
    )


def _quantisers(bench: Bench) -> Iterator[Row]:
    rows, hidden, inner = bench.sizes.rows, bench.sizes.hidden, bench.sizes.inner
    x = torch.randn(rows, hidden, device=bench.device).bfloat16()
    gate, up = (torch.randn(rows, inner, device=bench.device).bfloat16() for _ in range(2))

    def row(operation: str, name: str, given: tuple[Tensor, ...], product: Callable[[], Tensor]) -> Row:
        def measured() -> Row:
            quantise = choose(operation, "triton", name, bench.device)
            read = sum(part.nbytes for part in given)
            return _moving(
                bench, lambda: quantise(*given, name), read, lambda made: _first_rows_differ(made, product(), name)
            )

        return bench.row(f"{operation} {name}", f"{rows}x{given[0].shape[1]}", measured)

    for name in FORMATS:
        yield row("quantise", name, (x,), lambda: x[:CHECKED_ROWS].cpu())
    for name in IMPLEMENTATIONS["triton"].formats["quantise_both"]:
        yield row("quantise_both", name, (x,), lambda: x[:CHECKED_ROWS].cpu())
    for name in ("mxfp8", "fp8_tile", "nvfp4"):
        yield row(
            "swiglu_quantise", name, (gate, up), lambda: F.silu(gate[:CHECKED_ROWS].cpu()) * up[:CHECKED_ROWS].cpu()
        )


def _first_rows_differ(made: Quantised | tuple[Quantised, Quantised], x: Tensor, name: str) -> float:
    q = made[0] if isinstance(made, tuple) else made
    tall = q.rows if isinstance(q, BlockFP8) else 1
    first: Quantised = replace(q, codes=q.codes[: len(x)], scales=q.scales[: -(-len(x) // tall)])
    if isinstance(q, NVFP4) and q.outer.dim():
        first = replace(first, outer=q.outer[: len(x)])
    outer = q.outer.cpu() if isinstance(q, NVFP4) and not q.outer.dim() else None
    wanted = reference.quantise(x, name, outer=outer)
    return unequal(first, wanted) / wanted.codes.numel()


def _moves(bench: Bench) -> Iterator[Row]:
    (experts, tokens), hidden, choices = bench.sizes.layers[0], bench.sizes.hidden, bench.sizes.choices
    x = torch.randn(tokens, hidden, device=bench.device).bfloat16()
    picked = torch.rand(tokens, experts, device=bench.device).topk(choices).indices
    gates = torch.rand(tokens, choices, device=bench.device)
    placement = place_pairs(picked, experts, multiple=32)
    rows = reference.permute(x, placement)

    def there() -> Row:
        permute = choose("permute", "triton", "bf16", bench.device)
        return _moving(bench, lambda: permute(x, placement), x.nbytes, lambda y: _share_unequal(y, rows))

    def back() -> Row:
        unpermute = choose("unpermute", "triton", "bf16", bench.device)
        wanted = reference.unpermute(rows, placement, gates)
        read = tokens * choices * hidden * rows.element_size()
        return _moving(bench, lambda: unpermute(rows, placement, gates), read, lambda y: _share_unequal(y, wanted))

    yield bench.row("permute", f"{tokens}x{choices} of {hidden}", there)
    yield bench.row("unpermute", f"{tokens}x{choices} of {hidden}", back)


def _share_unequal(found: Tensor, wanted: Tensor) -> float:
    return float((found != wanted).float().mean())


def ragged_ends(experts: int, rows: int, device: str) -> Tensor:
    """End row of each expert's load, uneven as from a router; the first expert gets no rows."""
    g = torch.Generator().manual_seed(experts)
    weight = torch.randn(experts, generator=g).mul(0.6).exp()
    weight[0] = 0
    picked = weight.multinomial(rows, replacement=True, generator=g)
    return torch.bincount(picked, minlength=experts).cumsum(0).int().to(device)


def _matmuls(bench: Bench, name: str, experts: int, rows: int, n: int, k: int) -> Iterator[Row]:
    device = bench.device
    ends = ragged_ends(experts, rows, device)
    a, grads = (torch.randn(rows, width, device=device).bfloat16() for width in (k, n))
    b = (torch.randn(experts, n, k, device=device) / k**0.5).bfloat16()
    flops = 2 * rows * n * k
    by_torch: dict[str, float] = {}

    def row(
        kernel: str, operation: str, implementation: str, format: str, operands: Callable[[], Any], **how: Any
    ) -> Row:
        def measured() -> Row:
            run, given = partial(choose(operation, implementation, format, device), **how), operands()
            given = given if len(given) == 3 else (*given, ends)
            error = _error(run(*given), operation, *given)
            ms = bench.milliseconds(lambda: run(*given))
            if implementation == "torch":
                by_torch[kernel] = ms
            tflops = flops / ms / 1e9
            return {
                "tflops": round(tflops, 1),
                "ratio_bf16": round(by_torch[kernel] / ms, 3) if kernel in by_torch else None,
                "ratio_peak": bench.share(tflops, _multiplied(format)),
                "max_error": error,
            }

        shape = f"{name} {experts}x{n}x{k}, {rows} rows"
        return bench.row(" ".join((kernel, format, implementation, *how)), shape, measured)

    def quantised(kind: str) -> tuple[Any, Any]:
        left, right = PAIRS[kind]
        return choose("quantise", "triton", left, device)(a, left), choose("quantise", "triton", right, device)(
            b, right
        )

    def quantised_backwards(kind: str) -> tuple[Any, Any]:
        """Operands of dgrad: dy, and the columns that `quantise_both` makes of the weights."""
        left, right = PAIRS[kind]
        turned = choose("quantise_both", "triton", right, device)(b, right)[1]
        return choose("quantise", "triton", left, device)(grads, left), turned

    def columns(kind: str) -> tuple[Any, ...]:
        """Operands of wgrad, quantised along tokens. Each expert's rows are padded to whole blocks, and summed too."""
        load = ends.diff(prepend=ends.new_zeros(1))
        filled = ((load + 127) // 128 * 128).cumsum(0).int()
        quantise = choose("quantise_both", "triton", kind, device)
        parts = (torch.randn(int(filled[-1]), width, device=device).bfloat16() for width in (n, k))
        return *(quantise(part, kind)[1] for part in parts), filled

    for implementation in ("torch", "triton"):
        yield row("forward", "grouped_mm", implementation, "bf16", lambda: (a, b))
        yield row("dgrad", "grouped_mm", implementation, "bf16", lambda: (grads, b.mT))
        yield row("wgrad", "grouped_wgrad", implementation, "bf16", lambda: (grads.mT, a.mT))
    by_rows = partial(quantised, "fp8_row")
    yield row("forward", "grouped_mm", "torch_scaled", "fp8_row", by_rows)
    yield row("forward", "grouped_mm", "torch_scaled", "fp8_row", by_rows, use_fast_accum=True)
    for kind in PAIRS:
        yield row("forward", "grouped_mm", "triton", kind, lambda kind=kind: quantised(kind))
    for kind in ("fp8_block", "mxfp8"):
        yield row("dgrad", "grouped_mm", "triton", kind, lambda kind=kind: quantised_backwards(kind))
    for kind in ("fp8_tile", "mxfp8"):
        yield row("wgrad", "grouped_wgrad", "triton", kind, lambda kind=kind: columns(kind))


def _multiplied(format: str) -> str:
    """The kind of numbers that the tensor cores multiply for this format."""
    return "bf16" if format in ("bf16", "mxfp8") else "fp8"


def _error(found: Tensor, operation: str, a: Any, b: Any, ends: Tensor) -> float:
    """Error against fp32: over eight rows of each expert for forward and dgrad, over the smallest expert for wgrad."""
    starts = torch.cat([ends.new_zeros(1), ends[:-1]]).tolist()
    reaches = list(zip(starts, ends.tolist(), strict=True))
    if operation == "grouped_wgrad":
        expert = min(
            (e for e, (start, end) in enumerate(reaches) if end > start), key=lambda e: reaches[e][1] - reaches[e][0]
        )
        start, end = reaches[expert]
        left, right = (x.float() if isinstance(x, Tensor) else dequantise(x, torch.float32) for x in (a, b))
        wanted = left[:, start:end] @ right[:, start:end].T
        return apart(found[expert], wanted.bfloat16())
    few = [range(start, min(start + 8, end)) for start, end in reaches]
    rows = torch.tensor([row for reach in few for row in reach], device=ends.device)
    counts = torch.tensor([len(reach) for reach in few]).cumsum(0).int()
    return apart(found[rows], reference.grouped_mm(_rows_of(a, rows), b, counts))


def _rows_of(a: Tensor | Quantised, rows: Tensor) -> Tensor | Quantised:
    if isinstance(a, Tensor):
        return a[rows]
    codes = a.codes.view(torch.uint8)[rows].view(torch.float8_e4m3fn)
    return replace(a, codes=codes, scales=a.scales[rows])


def apart(found: Tensor, wanted: Tensor) -> float:
    """Relative difference in norm."""
    return float(f"{float((found.float() - wanted.float()).norm() / wanted.float().norm()):.2e}")


def _layer(bench: Bench, experts: int, tokens: int) -> Iterator[Row]:
    """Measure forward and backward of a whole layer of experts as the model runs it, quantising weights each time."""
    device, hidden, inner, choices = bench.device, bench.sizes.hidden, bench.sizes.inner, bench.sizes.choices
    x, grad = (torch.randn(tokens, hidden, device=device).bfloat16() for _ in range(2))
    gates = torch.rand(tokens, choices, device=device)
    picked = torch.rand(tokens, experts, device=device).topk(choices).indices
    shapes = ((inner, hidden), (inner, hidden), (hidden, inner))
    weights = [(torch.randn(experts, n, k, device=device) / k**0.5).bfloat16() for n, k in shapes]
    flops = 2 * 9 * tokens * choices * inner * hidden
    by_torch: dict[str, Any] = {}

    def row(implementation: str, format: str) -> Row:
        def measured() -> Row:
            kernels = ExpertKernels.of("triton", format, device) if implementation == "triton" else None
            found = forward_and_backward(kernels, x, picked, gates, *weights, grad)
            wanted = by_torch.get("found")
            error = max(apart(found[name], wanted[name]) for name in wanted) if wanted else None
            ms = bench.milliseconds(partial(forward_and_backward, kernels, x, picked, gates, *weights, grad))
            if implementation == "torch":
                by_torch.update(found=found, ms=ms)
            tflops = flops / ms / 1e9
            return {
                "tflops": round(tflops, 1),
                "ms": round(ms, 2),
                "ratio_bf16": round(by_torch["ms"] / ms, 3) if by_torch else None,
                "ratio_peak": bench.share(tflops, _multiplied(format)),
                "max_error": error,
            }

        name = f"layer {format} {implementation}"
        return bench.row(name, f"{experts}x{inner}x{hidden}, {tokens} tokens of {choices}", measured)

    yield row("torch", "bf16")
    for format in LAYERS:
        yield row("triton", format)
