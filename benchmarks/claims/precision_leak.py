"""Who reaches whom through the scales of low-precision matmuls: the rest of a batch, and the future.

Networks of recipes/tiny.toml, in fp32 but for their experts' matmuls, given the same experts before and after a change,
so that every matmul keeps its shape: what differs in log-probs then can have come through scales alone. Needs no run:
weights are random, or those of a model's folder (`--model`), which all seeds then share; a seed makes the tokens too.

`future`: the second half of a row is changed, and its first half is looked at. `batch`: all rows but one are. Each is
the mean |difference| of a log-prob, the largest, and the share of positions where there is any.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from _report import finish
from _rows import ROOT
from torch import Tensor

from etude.model import ModelConfig, Numerics, Replay, Transformer, load_hf, round_with
from etude.recipe import load_recipe
from etude.recipe.precision import PrecisionRecipe

SEEDS = (1, 2, 3)
EXPERTS = ("bf16", "nvfp4", "nvfp4_tensor", "mxfp8", "fp8_block")
ROWS, LENGTH = 4, 128


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, help="a folder with a model, such as stages/sft/model of a run")
    folder = parser.parse_args().model
    torch.set_num_threads(1)
    rows = [{"seed": seed, "experts": name, **measured(name, seed, folder)} for seed in SEEDS for name in EXPERTS]
    for row in rows:
        print(json.dumps(row))
    figures = [key for key in rows[0] if key not in ("seed", "experts")]
    means = {
        name: {key: statistics.mean(row[key] for row in rows if row["experts"] == name) for key in figures}
        for name in EXPERTS
    }
    finish("claims/precision_leak", {"seeds": list(SEEDS), "weights": "trained" if folder else "random", **means})


def measured(experts: str, seed: int, folder: Path | None) -> dict[str, Any]:
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
    recipe = load_recipe(ROOT / "recipes" / "tiny.toml")
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
