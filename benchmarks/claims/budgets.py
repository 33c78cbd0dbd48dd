"""Three log-spaced pretraining budgets, each followed by the same SFT and RL: loss on code that no task generator
wrote, and RL's reward. Every run is reported, whatever its result.

The verdict comes from each seed's slope over the logarithm of the budget: per doubling, the loss falls and the reward
rises.
"""

from __future__ import annotations

from math import log2
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from _arms import Arm
from _claim import Claim, main
from _figures import Told, number, of_seeds, stated
from _outcomes import mean, on_dev, outcomes, pass1
from _rows import Rows
from _verdict import above, below

from etude.journal import RunPaths, read_metrics
from etude.recipe import load_recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure


BUDGETS = ("quarter", "half", "whole")
KEPT = ("steps", "loss", "reward")


def measure(paths: RunPaths, arm: Arm) -> dict[str, Any]:
    rl = read_metrics(paths.metrics("rl"))
    last = rl[-max(1, len(rl) // 4) :]
    return {
        "steps": load_recipe(paths.recipe).pretrain.steps,
        "loss": round(_loss_on_library(paths), 5),
        "reward": round(float(np.mean([row["reward"] for row in last])), 5),
        "dev": outcomes(on_dev(paths)[-1]),
    }


def _loss_on_library(paths: RunPaths) -> float:
    """Loss of the base model on held-out documents of the standard library and folders alone."""
    import torch

    from etude.corpus import mixture, open_corpus
    from etude.model import load_hf
    from etude.pretrain.measure import held_out, mean_loss

    stage = load_recipe(paths.recipe).pretrain
    valid = open_corpus(paths.corpus).valid
    code = mixture(valid, stdlib_share=1.0, length=stage.length, seed=0)
    model = load_hf(paths.model("pretrain"), torch.float32)
    return mean_loss(model, held_out(code, stage.length, stage.batch), "cpu")


def conclude(rows: Rows) -> dict[str, Any]:
    runs = [
        {"arm": arm, "seed": seed, **{key: figures[key] for key in KEPT}}
        for arm in rows.arms
        for seed, figures in rows.of(arm).items()
    ]
    whole = [seed for seed in rows.seeds if all(seed in rows.of(arm) for arm in BUDGETS)]
    steps, loss, reward = ([[rows.of(arm)[seed][key] for arm in BUDGETS] for seed in whole] for key in KEPT)
    doublings = [[log2(budget) for budget in budgets] for budgets in steps]
    return {
        "runs": runs,
        **{key: _means(values) for key, values in zip(KEPT, (steps, loss, reward), strict=True)},
        "dev_pass1": {arm: number(mean([f["dev"] for f in rows.of(arm).values()], pass1)) for arm in rows.arms},
        **stated("loss_per_doubling", of_seeds(_slopes(doublings, loss))),
        **stated("reward_per_doubling", of_seeds(_slopes(doublings, reward))),
        **stated("reward_per_nat", of_seeds(_slopes(loss, reward))),
    }


def _means(by_seed: list[list[float]]) -> list[float] | None:
    """Mean for each budget over the seeds that have all budgets."""
    return [round(fmean(column), 4) for column in zip(*by_seed, strict=True)] or None


def _slopes(across: list[list[float]], values: list[list[float]]) -> list[float]:
    """Slope of each seed's values."""
    return [float(np.polyfit(x, y, 1)[0]) for x, y in zip(across, values, strict=True) if len(set(x)) > 1]


def draw(rows: Rows) -> Figure:
    from _plots import panels, seeds, title

    figure, axes = panels(2)
    by_seed: dict[int, list[tuple[int, float, float]]] = {}
    for arm in rows.arms:
        for seed, figures in rows.of(arm).items():
            by_seed.setdefault(seed, []).append((figures["steps"], figures["loss"], figures["reward"]))
    seeds(axes[0], {"reward": {seed: [(loss, r) for _, loss, r in sorted(runs)] for seed, runs in by_seed.items()}})
    title(axes[0], "RL reward against loss on library code", "nats")
    seeds(axes[1], {"reward": {seed: [(s, r) for s, _, r in sorted(runs)] for seed, runs in by_seed.items()}})
    budgets = sorted({steps for runs in by_seed.values() for steps, _, _ in runs})
    axes[1].set_xscale("log")
    axes[1].set_xticks(budgets, [f"{steps:,}" for steps in budgets])
    axes[1].minorticks_off()
    title(axes[1], "RL reward", "steps of pretraining")
    return figure


CLAIM = Claim(
    name="budgets",
    says="More pretraining, a lower loss on code that no generator made, and a higher reward of RL go together",
    arms=tuple(map(Arm, BUDGETS, ("budget-quarter.toml", "budget-half.toml", "rl.toml"))),
    until="rl",
    measure=measure,
    conclude=conclude,
    decided=(below("loss_per_doubling"), above("reward_per_doubling")),
    headline=(
        Told("steps", "steps {}", ",.0f"),
        Told("loss", "loss {}"),
        Told("reward", "reward {}"),
        Told("loss_per_doubling", "per doubling loss {}", "+.2f"),
        Told("reward_per_doubling", "reward {}", "+.2f"),
    ),
    draw=draw,
)

if __name__ == "__main__":
    main(CLAIM)
