"""Publishing and applying a version of the weights as a delta, beside writing and reading the whole safetensors file.

The weights are bf16, as engines hold them. A step as small as those of RL leaves most of them where they were: the
change is made by really rounding fp32 masters, moved by an Adam-sized step, to bf16.
"""

from __future__ import annotations

import tempfile
from itertools import count
from pathlib import Path

import torch
from _report import alternating, finish
from safetensors.torch import load_file, save_file

from etude.weights import WeightStore
from etude.weights.manifest import Manifest
from etude.weights.torch_bridge import from_state_dict

PARAMETERS, TENSORS = 32_000_000, 32
LEARNING_RATE = 1e-6
DEVIATION = 0.02


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
        },
    )


if __name__ == "__main__":
    main()
