"""Reference quantisers on one core, beside torchao's, whose codes must be the same.

Speed is input bytes per second of CPU time, the median of runs in turns: what else the machine does costs this less
than it costs wall-clock time, though a cache that is shared still counts. NVFP4's codes are compared under an outer
scale that is a power of two and with reciprocals of all 24 bits, the one setting in which torchao's arithmetic is ours.
Then what batch invariance costs (_invariance.py).
"""

from __future__ import annotations

import logging
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from _invariance import invariant_slowdown
from _report import finish
from torch import Tensor

from etude.model.precision import FORMATS, STORED, quantise_nvfp4

ROWS, WIDTH, RUNS = 2048, 2048, 12
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
Peer = Callable[[Tensor], tuple[Tensor, Tensor]]


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.randn(ROWS, WIDTH) * torch.randn(ROWS, 1).exp2()
    peers = torchao_quantisers(2.0 ** float((x.abs().max() / 2688).log2().ceil()))
    result: dict[str, Any] = {
        "formats": list(FORMATS),
        "exact": {name: all(equal(name, x.to(dtype), peers[name]) for dtype in DTYPES.values()) for name in STORED},
        **speeds(peers, x),
        "peer": "torchao, eager",
        # Filled in by the training recipes: seconds of an emulated step of the tiny lineage over those of a bf16 one.
        "emulated_slowdown": None,
        "invariant_slowdown": invariant_slowdown(),
    }
    finish("precision", result)


def torchao_quantisers(outer: float) -> dict[str, Peer]:
    logging.disable(logging.WARNING)  # of its compiled parts, which no CPU needs
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import to_mx
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize
    from torchao.quantization.quant_primitives import _choose_scale_float8, _quantize_affine_float8

    logging.disable(logging.NOTSET)

    def fp8(*block: int) -> Peer:
        def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
            scales = _choose_scale_float8(x.float(), list(block))
            return scales, _quantize_affine_float8(x, scales)

        return quantise

    return {
        "mxfp8": lambda x: to_mx(x, torch.float8_e4m3fn, 32, ScaleCalculationMode.RCEIL),
        "nvfp4": lambda x: nvfp4_quantize(x, per_tensor_scale=torch.tensor(outer)),
        "fp8_block": fp8(128, 128),
        "fp8_row": fp8(1, WIDTH),
    }


def equal(name: str, x: Tensor, peer: Peer) -> bool:
    scales, codes = peer(x)
    if name == "nvfp4":
        outer = torch.tensor(2.0 ** float((x.float().abs().max() / 2688).log2().ceil()))
        q: Any = quantise_nvfp4(x, outer=outer, reciprocal_bits=24)
    else:
        q = FORMATS[name].quantise(x)
    ours = (q.scales.contiguous().view(torch.uint8), q.codes.view(torch.uint8))
    theirs = (scales.contiguous().view(torch.uint8), codes.view(torch.uint8))
    return all(torch.equal(a.flatten(), b.flatten()) for a, b in zip(ours, theirs, strict=True))


def speeds(peers: dict[str, Peer], x: Tensor) -> dict[str, dict[str, dict[str, float]]]:
    works: dict[str, dict[str, Callable[[Tensor], object]]] = {
        "quantise_gb_s_core": {name: format.quantise for name, format in FORMATS.items()},
        "fake_gb_s_core": {name: format.fake for name, format in FORMATS.items()},
        "peer_gb_s_core": dict(peers),
    }
    inputs = {kind: x.to(dtype) for kind, dtype in DTYPES.items()}
    taken: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for run in range(RUNS + 1):
        for key, quantisers in works.items():
            for name, quantise in quantisers.items():
                for kind, given in inputs.items():
                    begun = time.thread_time()
                    quantise(given)
                    if run:
                        taken[key, name, kind].append(time.thread_time() - begun)
    sizes = {kind: given.numel() * given.element_size() / 1e9 for kind, given in inputs.items()}
    return {
        key: {
            name: {
                kind: float(f"{size / statistics.median(taken[key, name, kind]):.3g}") for kind, size in sizes.items()
            }
            for name in quantisers
        }
        for key, quantisers in works.items()
    }


if __name__ == "__main__":
    main()
