"""The kernels at the sizes of K2's experts: rows {kernel, shape, tflops, gb_s, ratio_bf16, ratio_peak, max_error}.

- gb_s counts what must be read and written once; ratio_peak of those kernels is the share of a large copy's bandwidth.
- tflops counts two for each product that the loads ask for; ratio_peak of matmuls is the share of a dense matmul of the
  same numbers, ratio_bf16 the time of `F.grouped_mm` in bf16 over the kernel's.
- max_error: of quantisers the share of bytes that differ from the reference, of matmuls the relative difference in norm
  to the reference on the same operands (of a layer: to the bf16 layer).

A kernel that fails has a row that says so, and the others follow.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from kernel_checks import PAIRS, unequal
from layer import Kit, bf16_kit, forward_and_backward, fp8_kit
from torch import Tensor

from etude.model.precision import FORMATS, MXFP8, BlockFP8, Quantised, RowFP8
from etude.model.precision.kernels import IMPLEMENTATIONS, choose, place, reference

HIDDEN, INNER = 7168, 2048
LOADS = ((48, 32768), (48, 4096), (8, 32768), (8, 4096))
"""Experts, and rows of tokens in all: the largest first, as what is tuned is tuned on the first."""
Row = dict[str, Any]


@dataclass
class Bench:
    device: str
    until: float
    """When to stop beginning new rows, on the monotonic clock."""
    copy_gb_s: float = 0.0
    peak: dict[str, float] = field(default_factory=dict)
    """TFLOP/s of a dense matmul, by kind of number."""

    def row(self, kernel: str, shape: str, measured: Callable[[], Row]) -> Row:
        """Any failure of one kernel is its row: the others are still of interest on a lent machine."""
        named = {"kernel": kernel, "shape": shape}
        if time.monotonic() > self.until:
            return {**named, "not_measured": "time was up"}
        try:
            return {**named, **measured()}
        except Exception as error:  # noqa: BLE001 - compilers and drivers raise of their own
            return {**named, "not_measured": f"{type(error).__name__}: {str(error).strip()[:300]}"}


def milliseconds(work: Callable[[], object]) -> float:
    """The median of twelve, after three that compile, tune and warm up."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    taken = []
    for _ in range(12):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        work()
        ended.record()
        ended.synchronize()
        taken.append(begun.elapsed_time(ended))
    return statistics.median(taken)


def kernel_rows(device: str, seconds: float) -> Iterator[Row]:
    bench = Bench(device, time.monotonic() + seconds)
    yield bench.row("copy", "4 GiB", lambda: _copy(bench))
    yield bench.row("dense bf16", "8192^3", lambda: _dense(bench, "bf16"))
    yield bench.row("dense fp8", "8192^3", lambda: _dense(bench, "fp8"))
    yield from _quantisers(bench)
    yield from _moves(bench)
    for experts, rows in LOADS:
        for name, n, k in (("up", INNER, HIDDEN), ("down", HIDDEN, INNER)):
            yield from _matmuls(bench, name, experts, rows, n, k)
            torch.cuda.empty_cache()
    yield from _layers(bench)


def _copy(bench: Bench) -> Row:
    x = torch.randn(2**30, device=bench.device)
    y = torch.empty_like(x)
    bench.copy_gb_s = 2 * x.nbytes / milliseconds(lambda: y.copy_(x)) / 1e6
    return {"gb_s": round(bench.copy_gb_s)}


def _dense(bench: Bench, kind: str) -> Row:
    a, b = (torch.randn(8192, 8192, device=bench.device).bfloat16() for _ in range(2))
    if kind == "fp8":
        codes, turned, one = (
            a.to(torch.float8_e4m3fn),
            b.to(torch.float8_e4m3fn).mT,
            torch.ones((), device=bench.device),
        )
        ms = milliseconds(lambda: torch._scaled_mm(codes, turned, one, one, out_dtype=torch.bfloat16))
    else:
        ms = milliseconds(lambda: a @ b)
    bench.peak[kind] = 2 * 8192**3 / ms / 1e9
    return {"tflops": round(bench.peak[kind], 1)}


def _nbytes(*given: Tensor | Quantised) -> int:
    total = 0
    for x in given:
        if isinstance(x, Tensor):
            total += x.nbytes
        else:
            total += sum(getattr(x, name).nbytes for name in ("codes", "scales", "outer") if hasattr(x, name))
    return total


def _moving(bench: Bench, work: Callable[[], Any], read: int, error: Callable[[Any], float]) -> Row:
    made = work()
    written = _nbytes(*made) if isinstance(made, tuple) else _nbytes(made)
    wrong = error(made)
    del made
    gb_s = (read + written) / milliseconds(work) / 1e6
    ratio = round(gb_s / bench.copy_gb_s, 3) if bench.copy_gb_s else None
    return {"gb_s": round(gb_s), "ratio_peak": ratio, "max_error": wrong}


def _first_rows_differ(made: Quantised, x: Tensor, name: str) -> float:
    """The share of bytes that differ in the first rows, whose scales depend on nothing below them."""
    few = 256
    wanted = reference.quantise(x[:few].cpu(), name) if name != "nvfp4_tensor" else None
    if wanted is None:
        wanted = reference.quantise(x[:few].cpu(), "nvfp4", outer=made.outer.cpu())
    scales = few // 128 if name == "fp8_block" else few
    first: Quantised
    match made:
        case BlockFP8():
            first = BlockFP8(made.codes[:few], made.scales[:scales], made.rows)
        case MXFP8() | RowFP8():
            first = type(made)(made.codes[:few], made.scales[:few])
        case _:
            first = type(made)(
                made.codes[:few], made.scales[:few], made.outer[:few] if made.outer.dim() else made.outer
            )
    return unequal(first, wanted) / wanted.codes.numel()


def _quantisers(bench: Bench) -> Iterator[Row]:
    rows = 32768
    x = torch.randn(rows, HIDDEN, device=bench.device).bfloat16()
    gate, up = (torch.randn(rows, INNER, device=bench.device).bfloat16() for _ in range(2))
    for name in FORMATS:

        def one(name: str = name) -> Row:
            quantise = choose("quantise", "triton", name, bench.device)
            return _moving(bench, lambda: quantise(x, name), x.nbytes, lambda q: _first_rows_differ(q, x, name))

        yield bench.row(f"quantise {name}", f"{rows}x{HIDDEN}", one)
    for name in IMPLEMENTATIONS["triton"].formats["quantise_both"]:

        def both(name: str = name) -> Row:
            quantise = choose("quantise_both", "triton", name, bench.device)
            # Columns are the rows of the transpose: all of them, but few of their numbers, would be slow to check.
            return _moving(bench, lambda: quantise(x, name), x.nbytes, lambda q: _first_rows_differ(q[0], x, name))

        yield bench.row(f"quantise_both {name}", f"{rows}x{HIDDEN}", both)
    for name in ("mxfp8", "fp8_tile", "nvfp4"):

        def fused(name: str = name) -> Row:
            quantise = choose("swiglu_quantise", "triton", name, bench.device)
            h = (torch.nn.functional.silu(gate[:256].cpu()) * up[:256].cpu()).to(bench.device)
            return _moving(
                bench, lambda: quantise(gate, up, name), 2 * gate.nbytes, lambda q: _first_rows_differ(q, h, name)
            )

        yield bench.row(f"swiglu_quantise {name}", f"{rows}x{INNER}", fused)


def _moves(bench: Bench) -> Iterator[Row]:
    tokens, choices, experts = 4096, 8, 48
    x = torch.randn(tokens, HIDDEN, device=bench.device).bfloat16()
    picked = torch.rand(tokens, experts, device=bench.device).topk(choices).indices
    gates = torch.rand(tokens, choices, device=bench.device)
    placement = place(picked, experts, multiple=32)
    rows = reference.permute(x, placement)
    shape = f"{tokens}x{choices} of {HIDDEN}"

    def there() -> Row:
        permute = choose("permute", "triton", "bf16", bench.device)
        return _moving(bench, lambda: permute(x, placement), x.nbytes, lambda y: float((y != rows).float().mean()))

    def back() -> Row:
        unpermute = choose("unpermute", "triton", "bf16", bench.device)
        wanted = reference.unpermute(rows, placement, gates)
        read = tokens * choices * HIDDEN * 2
        return _moving(
            bench, lambda: unpermute(rows, placement, gates), read, lambda y: float((y != wanted).float().mean())
        )

    yield bench.row("permute", shape, there)
    yield bench.row("unpermute", shape, back)


def ragged_ends(experts: int, rows: int, device: str) -> Tensor:
    """Loads as a router makes them: uneven, the first expert without any."""
    g = torch.Generator().manual_seed(experts)
    weight = torch.randn(experts, generator=g).mul(0.6).exp()
    weight[0] = 0
    picked = weight.multinomial(rows, replacement=True, generator=g)
    return torch.bincount(picked, minlength=experts).cumsum(0).int().to(device)


def _matmuls(bench: Bench, name: str, experts: int, rows: int, n: int, k: int) -> Iterator[Row]:
    device = bench.device
    ends = ragged_ends(experts, rows, device)
    a = torch.randn(rows, k, device=device).bfloat16()
    b = (torch.randn(experts, n, k, device=device) / k**0.5).bfloat16()
    grads = torch.randn(rows, n, device=device).bfloat16()
    shape = f"{name} {experts}x{n}x{k}, {rows} rows"
    flops = 2 * rows * n * k
    taken: dict[str, float] = {}

    def row(
        kernel: str, operation: str, implementation: str, format: str, operands: Callable[[], tuple[Any, ...]]
    ) -> Row:
        def measured() -> Row:
            run = choose(operation, implementation, format, device)
            given = operands()
            error = _error(run(*given), operation, given)
            ms = milliseconds(lambda: run(*given))
            baseline = (
                f"{operation} of {tuple(given[1].shape)}" if format == "bf16" else f"grouped_mm of {(experts, n, k)}"
            )
            if implementation == "torch":
                taken[baseline] = ms
            peak = bench.peak.get("bf16" if format == "bf16" else "fp8")
            return {
                "tflops": round(flops / ms / 1e9, 1),
                "ratio_bf16": round(taken[baseline] / ms, 3) if baseline in taken else None,
                "ratio_peak": round(flops / ms / 1e9 / peak, 3) if peak else None,
                "max_error": error,
            }

        return bench.row(kernel, shape, measured)

    def quantised(kind: str) -> tuple[Any, ...]:
        left, right = PAIRS[kind]
        return (*(choose("quantise", "triton", f, device)(x, f) for f, x in ((left, a), (right, b))), ends)

    for implementation in ("torch", "triton"):
        yield row(f"grouped_mm bf16, {implementation}", "grouped_mm", implementation, "bf16", lambda: (a, b, ends))
    yield row("grouped_mm fp8_row, torch_scaled", "grouped_mm", "torch_scaled", "fp8_row", lambda: quantised("fp8_row"))
    for kind in PAIRS:
        yield row(f"grouped_mm {kind}, triton", "grouped_mm", "triton", kind, lambda kind=kind: quantised(kind))
    for implementation in ("torch", "triton"):
        yield row(f"dgrad bf16, {implementation}", "grouped_mm", implementation, "bf16", lambda: (grads, b.mT, ends))
        yield row(
            f"wgrad bf16, {implementation}", "grouped_wgrad", implementation, "bf16", lambda: (grads.mT, a.mT, ends)
        )


def _error(found: Tensor, operation: str, given: tuple[Any, ...]) -> float:
    """Against the reference in fp32: of a forward pass a few rows of each expert, of wgrad an expert of few rows."""
    a, b, ends = given
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])
    if operation == "grouped_wgrad":
        load = ends - starts
        expert = int(torch.where(load > 0, load, load.max() + 1).argmin())
        first, last = int(starts[expert]), int(ends[expert])
        wanted = a[:, first:last].float() @ b[:, first:last].float().T
        return _apart(found[expert], wanted)
    few = [range(int(s), min(int(s) + 8, int(e))) for s, e in zip(starts, ends, strict=True)]
    rows = torch.tensor([row for reach in few for row in reach], device=ends.device)
    counts = torch.tensor([len(reach) for reach in few]).cumsum(0).int()
    return _apart(found[rows], reference.grouped_mm(_picked(a, rows), b, counts))


def _picked(a: Tensor | Quantised, rows: Tensor) -> Tensor | Quantised:
    if isinstance(a, Tensor):
        return a[rows]
    codes = a.codes.view(torch.uint8)[rows].view(torch.float8_e4m3fn)
    return BlockFP8(codes, a.scales[rows], 1) if isinstance(a, BlockFP8) else type(a)(codes, a.scales[rows])


def _apart(found: Tensor, wanted: Tensor) -> float:
    return float(f"{float((found.float() - wanted.float()).norm() / wanted.float().norm()):.2e}")


def _layers(bench: Bench) -> Iterator[Row]:
    """48 experts, 4,096 tokens of 8 choices; forward and backward."""
    device, experts, tokens, choices = bench.device, 48, 4096, 8
    x, grad = (torch.randn(tokens, HIDDEN, device=device).bfloat16() for _ in range(2))
    gates = torch.rand(tokens, choices, device=device)
    placement = place(torch.rand(tokens, experts, device=device).topk(choices).indices, experts, multiple=128)
    layer = [
        (torch.randn(experts, n, k, device=device) / k**0.5).bfloat16()
        for n, k in ((INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER))
    ]
    shape = f"{experts}x{INNER}x{HIDDEN}, {tokens} tokens of {choices}"
    flops = 2 * 9 * tokens * choices * INNER * HIDDEN
    taken: dict[str, float] = {}
    kept: dict[str, Tensor] = {}

    def row(name: str, kit: Callable[[], Kit]) -> Row:
        def measured() -> Row:
            made = kit()
            weights = [made.weights(w) for w in layer]
            found = forward_and_backward(made, weights, x, gates, placement, grad)
            if not kept:
                kept.update(found)
            error = max(_apart(found[key], kept[key]) for key in kept)
            del found
            ms = milliseconds(lambda: forward_and_backward(made, weights, x, gates, placement, grad))
            taken.setdefault("bf16", ms)
            peak = bench.peak.get("bf16")
            return {
                "tflops": round(flops / ms / 1e9, 1),
                "ms": round(ms, 2),
                "ratio_bf16": round(taken["bf16"] / ms, 3),
                "ratio_peak": round(flops / ms / 1e9 / peak, 3) if peak else None,
                "max_error": error,
            }

        return bench.row(name, shape, measured)

    yield row("layer bf16, torch", lambda: bf16_kit(device))
    yield row("layer bf16, triton", lambda: bf16_kit(device, "triton"))
    yield row("layer fp8_block, triton", lambda: fp8_kit(device))
