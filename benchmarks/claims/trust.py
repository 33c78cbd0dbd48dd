"""A trust region by the difference of probabilities compared with the recipe's by their ratio: pass@1 on dev after RL,
and the reward on the way there.

The reward is the mean over all steps, so an arm that learns sooner has a higher one. The clipped share is that of the
trained tokens that got no gradient.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

from _arms import Arm
from _claim import Claim, main
from _figures import Told, in_tens, number, of_seeds, points, stated
from _outcomes import gains, mean, on_dev, outcomes, pass1
from _rows import Rows
from _verdict import not_below

from etude.journal import RunPaths, read_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ARMS = {"ratio": "rl.toml", "difference": "trust-difference.toml"}
CURVES = ("reward", "clipped_share", "mismatch_p99")


def measure(paths: RunPaths, arm: Arm) -> dict[str, Any]:
    rows = read_metrics(paths.metrics("rl"))
    curves = {name: [[row["step"], round(row[name], 6)] for row in rows if name in row] for name in CURVES}
    return {"curves": curves, "dev": outcomes(on_dev(paths)[-1])}


def conclude(rows: Rows) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for arm in ARMS:
        runs = list(rows.of(arm).values())
        found[f"dev_pass1_{arm}"] = number(mean([figures["dev"] for figures in runs], pass1))
        for name in CURVES:
            found |= stated(f"{name}_{arm}", of_seeds([_mean(figures, name) for figures in runs]))
    pairs = rows.pairs("ratio", "difference")
    found |= gains("dev_gain", [(ratio["dev"], difference["dev"]) for ratio, difference in pairs], pass1)
    rewards = [_mean(difference, "reward") - _mean(ratio, "reward") for ratio, difference in pairs]
    return found | stated("reward_gain", of_seeds(rewards))


def _mean(figures: dict[str, Any], name: str) -> float:
    curve = figures["curves"][name]
    return fmean(value for _, value in curve) if curve else 0.0


def draw(rows: Rows) -> Figure:
    from _plots import panels, seeds, title

    figure, axes = panels(2)
    for axis, name, said in ((axes[0], "reward", "reward"), (axes[1], "clipped_share", "tokens beyond the region")):
        seeds(axis, {arm: {seed: in_tens(f["curves"][name]) for seed, f in rows.of(arm).items()} for arm in ARMS})
        title(axis, said, "step of RL")
    return figure


CLAIM = Claim(
    name="trust",
    says="A trust region by the difference of probabilities learns no less than one by their ratio",
    arms=tuple(Arm(name, recipe) for name, recipe in ARMS.items()),
    until="rl",
    measure=measure,
    conclude=conclude,
    decided=(not_below("dev_gain"),),
    headline=(
        points("dev_gain", "by difference dev pass@1 {} points"),
        Told("reward_gain", "mean reward of all steps {}", "+.3f"),
        Told("clipped_share_ratio", "tokens beyond it by ratio {} %", ".2f", 100.0),
        Told("clipped_share_difference", "by difference {} %", ".2f", 100.0),
    ),
    draw=draw,
)

if __name__ == "__main__":
    main(CLAIM)
