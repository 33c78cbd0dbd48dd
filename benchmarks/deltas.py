"""Publishing and applying weights as a delta, compared with writing and reading the whole safetensors file.

The weights are bf16, as engines hold them. The change between two versions is realistic: fp32 master weights take an
Adam-sized step of RL and are rounded to bf16, which leaves most weights unchanged.

`quantised`: the same step for some tensors whose versions hold codes and scales (`precision.experts`). Given are the
bytes of the delta and of the whole version, each divided by its size in bf16.
"""

from __future__ import annotations

import tempfile
from itertools import count
from pathlib import Path

import torch
from _report import alternating, finish
from safetensors.torch import load_file, save_file
from torch import Tensor

from etude.model import Numerics
from etude.weights import WeightStore
from etude.weights.manifest import Manifest
from etude.weights.torch_bridge import from_state_dict

PARAMETERS, TENSORS = 32_000_000, 32
LEARNING_RATE = 1e-6
DEVIATION = 0.02
QUANTISED, WHOLE_BLOCKS = 4, 992
"""How many tensors are quantised, and how many of their columns: a multiple of the block sizes, 16 and 32."""


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(2)
    masters = {f"w{n}": torch.randn(PARAMETERS // TENSORS // 1000, 1000) * DEVIATION for n in range(TENSORS)}
    before = {name: tensor.bfloat16() for name, tensor in masters.items()}
    after = {name: (t + LEARNING_RATE * torch.randn_like(t).sign()).bfloat16() for name, t in masters.items()}
    changed = sum(int((before[n] != after[n]).sum()) for n in before) / PARAMETERS
    base, tip = from_state_dict(before), from_state_dict(after)
    full_bytes = sum(tensor.data.nbytes for tensor in tip.values())

    with tempfile.TemporaryDirectory() as place:
        store = WeightStore(f"{place}/store", anchor_every=1000)
        store.publish(0, base)
        versions = count(1)
        manifests: list[Manifest] = []

        def delta() -> None:
            version = next(versions)
            manifests.append(store.publish(version, tip, base=(0, base)))
            store.read(version, have=(0, base))

        def whole() -> None:
            save_file(after, f"{place}/whole.safetensors")
            load_file(f"{place}/whole.safetensors")

        delta_seconds, whole_seconds = alternating(delta, whole)
        got = store.read(next(versions) - 1, have=(0, base))
        assert all(got[name].data.tobytes() == tip[name].data.tobytes() for name in tip), "a delta must be lossless"
        size = Path(f"{place}/whole.safetensors").stat().st_size

    some = {name: (before[name][:, :WHOLE_BLOCKS], after[name][:, :WHOLE_BLOCKS]) for name in list(before)[:QUANTISED]}
    finish(
        "deltas",
        {
            "peer": "safetensors save_file + load_file",
            "parameters": PARAMETERS,
            "changed_share": changed,
            "bytes": manifests[-1].bytes_stored,
            "peer_bytes": size,
            "bytes_ratio": manifests[-1].bytes_stored / full_bytes,
            "seconds": delta_seconds,
            "peer_seconds": whole_seconds,
            "seconds_ratio": delta_seconds / whole_seconds,
            "quantised": quantised(some),
        },
    )


def quantised(pairs: dict[str, tuple[Tensor, Tensor]]) -> dict[str, dict[str, float]]:
    """Sizes of a delta and of a whole version in each format. `pairs`: each tensor before and after a step."""

    def published(name: str) -> Manifest:
        versions = [from_state_dict(held(name, {n: pair[at] for n, pair in pairs.items()})) for at in (0, 1)]
        with tempfile.TemporaryDirectory() as place:
            store = WeightStore(place)
            store.publish(0, versions[0])
            return store.publish(1, versions[1], base=(0, versions[0]))

    plain = published("bf16")
    found = {name: published(name) for name in ("mxfp8", "nvfp4", "fp8_block")}
    return {
        name: {
            "delta_ratio": float(f"{one.bytes_stored / plain.bytes_stored:.3g}"),
            "whole_ratio": float(f"{one.bytes_full / plain.bytes_full:.3g}"),
            "share_changed": float(f"{one.share_changed:.3g}"),
        }
        for name, one in found.items()
    }


def held(name: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that a version stores for these weights: the weights themselves, or their codes and scales."""
    if name == "bf16":
        return tensors
    parts: dict[str, Tensor] = {}
    for weight, tensor in tensors.items():
        (q,) = Numerics(name).codes([tensor.unsqueeze(0)])
        parts |= {f"{weight}.{part}": getattr(q, part) for part in ("codes", "scales", "outer") if hasattr(q, part)}
    return parts


if __name__ == "__main__":
    main()
