"""Families of networks: how far ours are from those of `transformers`, over random settings of config.json.

    make bench NAME=families

For each family: the largest difference of a logit (as a share of 1 + the logit) and of a gradient (as a share of the
largest), in fp32, and whether every checkpoint came back from reading and writing with the same names, bits and
settings. The networks are those of tests/model/families.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from _report import finish
from hypothesis import HealthCheck, Phase, given, settings
from safetensors.torch import load_file, save_file

sys.path.append(str(Path(__file__).resolve().parent.parent))

from tests.model.families.strategies import NAMES, configs
from tests.model.families.theirs import differences, ours_of, published, router_biases, theirs_of

from etude.model import load_hf, save_hf

NETWORKS = 25
"""Random settings per family."""


def comes_back(data: dict[str, Any], theirs: Any) -> bool:
    """Whether a published checkpoint is the same once it was read and written."""
    with tempfile.TemporaryDirectory() as place:
        found, written = Path(place, "found"), Path(place, "written")
        found.mkdir()
        stored = published(dict(theirs.named_parameters()) | router_biases(theirs))
        tensors = {name: tensor.detach().clone() for name, tensor in stored}
        save_file(tensors, found / "model.safetensors", metadata={"format": "pt"})
        (found / "config.json").write_text(json.dumps(data | {"torch_dtype": "float32"}))
        save_hf(load_hf(found), written)
        again = load_file(written / "model.safetensors")
        same = all(torch.equal(tensor, again[name]) for name, tensor in tensors.items() if name in again)
        kept = json.loads((written / "config.json").read_text()) == json.loads((found / "config.json").read_text())
        return same and kept and tensors.keys() == again.keys()


def measured(family: str) -> dict[str, float | bool]:
    logits, gradients, roundtrip = [0.0], [0.0], [True]

    @settings(
        max_examples=NETWORKS,
        phases=[Phase.generate],
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(data=configs(family))
    def measure(data: dict[str, Any]) -> None:
        seed = len(logits)
        theirs = theirs_of(data, seed)
        apart, of_gradients = differences(ours_of(data, theirs), theirs, seed)
        logits.append(apart)
        gradients.append(max(of_gradients.values()))
        roundtrip.append(comes_back(data, theirs))

    measure()
    largest = (float(f"{max(shares):.2g}") for shares in (logits, gradients))
    return {**dict(zip(("logits", "gradients"), largest, strict=True)), "roundtrip": all(roundtrip)}


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    found = {}
    for family in (*NAMES, "kimi_k25"):
        found[family] = measured(family)
        print(family, found[family])
    largest = {f"largest_{key}": max(one[key] for one in found.values()) for key in ("logits", "gradients")}
    finish("families", {"families": found, **largest, "networks": NETWORKS})


if __name__ == "__main__":
    main()
