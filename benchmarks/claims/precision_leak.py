"""Who reaches whom through the scales of low-precision matmuls: the rest of a batch, and the future.

Networks of recipes/tiny.toml, in fp32 but for their experts' matmuls, given the same experts before and after a change,
so that every matmul keeps its shape: what differs in log-probs then can have come through scales alone. A seed's
network is the SFT of a run of that seed, of the arm `rl.toml` that most claims share; where a seed has none, weights
are random for all. A seed makes the tokens too.

`future`: the second half of a row is changed, and its first half is looked at. `batch`: all rows but one are. Each is
the mean |difference| of a log-prob, the largest, and the share of positions where there is any; means over the seeds
with their 95 % intervals.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from _arms import RECIPES
from _figures import of_seeds, stated
from _report import finish
from _rows import ROOT
from _verdict import SEEDS
from torch import Tensor

from etude.model import ModelConfig, Numerics, Replay, Transformer, load_hf, round_with
from etude.recipe import load_recipe
from etude.recipe.precision import PrecisionRecipe

EXPERTS = ("bf16", "nvfp4", "nvfp4_tensor", "mxfp8", "fp8_block")
ROWS, LENGTH = 4, 128


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "claims", help="where the claims' runs lie")
    runs = parser.parse_args().runs
    trained = [newest_sft(runs, seed) for seed in SEEDS]
    folders = trained if all(trained) else [None] * len(SEEDS)
    torch.set_num_threads(1)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in EXPERTS}
    for seed, folder in zip(SEEDS, folders, strict=True):
        for name in EXPERTS:
            found[name].append(measured(name, seed, folder))
            print(json.dumps({"seed": seed, "experts": name, **found[name][-1]}), flush=True)
    weights = [f"SFT of {folder.parents[2].name}" if folder else "random" for folder in folders]
    told = {name: concluded(seeds) for name, seeds in found.items()}
    finish("claims/precision_leak", {"seeds": list(SEEDS), "weights": weights, **told})


def newest_sft(runs: Path, seed: int) -> Path | None:
    found = runs.glob(f"rl-{seed}-*/stages/sft/model/config.json")
    return max((file.parent for file in found), key=lambda folder: folder.stat().st_mtime, default=None)


def concluded(seeds: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Of one format: each figure and its interval."""
    told: dict[str, Any] = {}
    for key in seeds[0]:
        told |= stated(key, of_seeds([figures[key] for figures in seeds]))
    return told


def measured(experts: str, seed: int, folder: Path | None) -> dict[str, float]:
    model = network(seed, folder)
    round_with(model, Numerics.of(PrecisionRecipe(experts=experts, emulate=True)))
    generator = torch.Generator().manual_seed(seed)
    tokens, others = torch.randint(model.config.vocab_size, (2, ROWS, LENGTH), generator=generator)
    half = LENGTH // 2
    with torch.no_grad():
        chosen = model(tokens).experts_btlk
        before = log_probs(model, tokens, chosen)
        future = torch.cat((tokens[:, :half], others[:, half:]), 1)
        late = torch.stack(
            # Row by row, so that nothing but its own future can reach a row.
            [
                log_probs(model, changed[None], own[None])[0] - log_probs(model, row[None], own[None])[0]
                for row, changed, own in zip(tokens, future, chosen, strict=True)
            ]
        )
        beside = log_probs(model, torch.cat((tokens[:1], others[1:])), chosen)[0] - before[0]
    return {**differing("future", late[:, : half - 1]), **differing("batch", beside[:-1])}


def network(seed: int, folder: Path | None) -> Transformer:
    if folder is not None:
        return load_hf(folder, torch.float32)
    recipe = load_recipe(RECIPES.parent / "tiny.toml")
    return Transformer(ModelConfig.from_recipe(recipe.model, recipe.tokenizer.vocab_size)).initialise(seed)


def log_probs(model: Transformer, tokens_bt: Tensor, experts_btlk: Tensor) -> Tensor:
    """Of a fixed token at every position, so that a change of tokens changes nothing that is asked."""
    found: Tensor = model(tokens_bt, replay=Replay(experts_btlk, "on")).logits_btv.log_softmax(-1)[..., 0]
    return found


def differing(name: str, difference: Tensor) -> dict[str, float]:
    return {
        f"{name}_mean": float(difference.abs().mean()),
        f"{name}_max": float(difference.abs().max()),
        f"{name}_share": float((difference != 0).float().mean()),
    }


if __name__ == "__main__":
    main()
