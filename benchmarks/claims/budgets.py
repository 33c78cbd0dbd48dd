"""Three pretraining budgets, log-spaced, then the same SFT and the same RL: loss on code that the task generator never
made, against RL's reward. Every run is told, whatever it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from _arms import Arm
from _claim import Claim, main
from _figures import Told, number, of_seeds, stated
from _outcomes import mean, on_dev, outcomes, pass1
from _rows import Rows

from etude.journal import RunPaths, read_metrics
from etude.recipe import load_recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    """Of the base model, on held-out documents of the standard library and folders alone."""
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
        {"arm": arm, "seed": seed, **{key: figures[key] for key in ("steps", "loss", "reward")}}
        for arm in rows.arms
        for seed, figures in rows.of(arm).items()
    ]
    slopes = []
    for seed in rows.seeds:
        points = [(run["loss"], run["reward"]) for run in runs if run["seed"] == seed]
        if len({loss for loss, _ in points}) > 1:
            loss, reward = zip(*points, strict=True)
            slopes.append(float(np.polyfit(loss, reward, 1)[0]))
    return {
        "runs": runs,
        "dev_pass1": {arm: number(mean([f["dev"] for f in rows.of(arm).values()], pass1)) for arm in rows.arms},
        **stated("reward_per_nat", of_seeds(slopes)),
    }


def draw(rows: Rows) -> Figure:
    from _plots import panels, seeds, title

    figure, axes = panels(2)
    by_seed: dict[int, list[tuple[int, float, float]]] = {}
    for arm in rows.arms:
        for seed, figures in rows.of(arm).items():
            by_seed.setdefault(seed, []).append((figures["steps"], figures["loss"], figures["reward"]))
    lines = {f"seed {seed}": {seed: [(loss, r) for _, loss, r in sorted(runs)]} for seed, runs in by_seed.items()}
    seeds(axes[0], lines)
    title(axes[0], "RL reward against loss on library code", "nats")
    seeds(axes[1], {n: {seed: [(s, r) for s, _, r in sorted(by_seed[seed])] for seed in p} for n, p in lines.items()})
    budgets = sorted({steps for runs in by_seed.values() for steps, _, _ in runs})
    axes[1].set_xscale("log")
    axes[1].set_xticks(budgets, [f"{steps:,}" for steps in budgets])
    axes[1].minorticks_off()
    title(axes[1], "RL reward", "steps of pretraining")
    return figure


CLAIM = Claim(
    name="budgets",
    says="More pretraining, a lower loss on code that no generator made, and a higher reward of RL go together",
    arms=(Arm("quarter", "budget-quarter.toml"), Arm("half", "budget-half.toml"), Arm("whole", "rl.toml")),
    until="rl",
    measure=measure,
    conclude=conclude,
    headline=(Told("reward_per_nat", "{} reward per nat of loss", "+.2f"),),
    draw=draw,
)

if __name__ == "__main__":
    main(CLAIM)
