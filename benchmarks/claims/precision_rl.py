"""RL in low precision: mismatch between trainer and engine, reward and stability over a hundred steps.

All arms of a seed begin with the same SFT, of which nothing was rounded. What a run comes to is told of its last
`LAST` steps, and how far it fell from its best as `drop`: a run that came apart has a large one. `reciprocal` is NVFP4
per token whose quantiser multiplies by a reciprocal good to 22 bits in place of dividing; what that alone does to codes
is counted on the weights of the SFT.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from _arms import Arm
from _claim import Claim, main
from _figures import Told, in_tens, number, of_seeds, points, stated
from _outcomes import gain, mean, on_dev, outcomes, pass1
from _rows import Rows

from etude.journal import RunPaths, read_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ARMS = {
    "bf16": "rl-bf16.toml",
    "mxfp8": "rl-mxfp8.toml",
    "nvfp4": "rl-nvfp4.toml",
    "nvfp4_tensor": "rl-nvfp4-tensor.toml",
    "reciprocal": "rl-nvfp4-reciprocal.toml",
}
CURVES = ("reward", "solved", "mismatch_mean", "mismatch_p99", "mismatch_k3", "entropy", "grad_norm")
LAST = 20
BITS = (22, 16, 12, 8)
"""Of reciprocals: 22 is what GPUs' fast division gives, the others show where codes begin to change."""


def measure(paths: RunPaths, arm: Arm) -> dict[str, Any]:
    rows = read_metrics(paths.metrics("rl"))
    return {
        "curves": {name: [[row["step"], round(row[name], 6)] for row in rows if name in row] for name in CURVES},
        "dev": outcomes(on_dev(paths)[-1]),
        "codes_changed": codes_changed(paths) if arm.name == "reciprocal" else None,
    }


def codes_changed(paths: RunPaths) -> dict[str, float]:
    """Share of the codes of the SFT's experts that a reciprocal of so many bits makes others than division does."""
    import torch

    from etude.model import load_hf
    from etude.model.precision import quantise_nvfp4

    model = load_hf(paths.model("sft"), torch.bfloat16)
    weights = [value for name, value in model.state_dict().items() if ".experts." in name]
    assert weights
    found = {}
    for bits in BITS:
        changed = total = 0
        for weight in weights:
            exact, other = (quantise_nvfp4(weight, reciprocal_bits=asked).codes for asked in (None, bits))
            for shift in (0, 4):  # two codes to a byte
                changed += int((exact >> shift & 15).ne(other >> shift & 15).sum())
            total += 2 * exact.numel()
        found[str(bits)] = changed / total
    return found


def conclude(rows: Rows) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for arm in ARMS:
        runs = [figures["curves"] for figures in rows.of(arm).values()]
        found[f"steps_{arm}"] = [len(curves["reward"]) for curves in runs]
        for name in ("reward", "mismatch_p99", "mismatch_k3"):
            found |= stated(f"{name}_{arm}", of_seeds([_end(curves[name]) for curves in runs]))
        found[f"drop_{arm}"] = number(of_seeds([_drop(curves["reward"]) for curves in runs]))
        found[f"dev_pass1_{arm}"] = number(mean([figures["dev"] for figures in rows.of(arm).values()], pass1))
        if arm != "bf16":
            pairs = [(plain["dev"], low["dev"]) for plain, low in rows.pairs("bf16", arm)]
            found |= stated(f"dev_gain_of_{arm}", gain(pairs, pass1))
            ratios = [
                _end(low["curves"]["mismatch_p99"]) / _end(plain["curves"]["mismatch_p99"])
                for plain, low in rows.pairs("bf16", arm)
            ]
            found |= stated(f"mismatch_of_{arm}", of_seeds(ratios))
    counted = [figures["codes_changed"] for figures in rows.of("reciprocal").values()]
    for bits in BITS:
        found[f"codes_changed_{bits}"] = fmean(c[str(bits)] for c in counted) if counted else None
    return found


def _end(curve: Sequence[Sequence[float]]) -> float:
    return fmean(value for _, value in curve[-LAST:])


def _drop(curve: Sequence[Sequence[float]]) -> float:
    """From the best mean of `LAST` steps to the last one."""
    values = [value for _, value in curve]
    window = min(LAST, len(values))
    means = [fmean(values[end - window : end]) for end in range(window, len(values) + 1)]
    return max(means) - means[-1]


def draw(rows: Rows) -> Figure:
    from _plots import bars, panels, seeds, title

    figure, axes = panels(4)
    shown = {"reward": "reward", "mismatch_p99": "p99 of |log-prob trainer - engine|", "entropy": "entropy (nats)"}
    for axis, (name, text) in zip(axes, shown.items(), strict=False):
        seeds(axis, {arm: {s: in_tens(f["curves"][name]) for s, f in rows.of(arm).items()} for arm in ARMS})
        title(axis, text, "step of RL")
    axes[1].set_yscale("log")
    bars(axes[3], {"dev pass@1": {arm: mean([f["dev"] for f in rows.of(arm).values()], pass1) for arm in ARMS}})
    title(axes[3], "after the last step")
    return figure


CLAIM = Claim(
    name="precision_rl",
    says="RL holds for a hundred steps in MXFP8 and in NVFP4 per token; per tensor the engine is further away",
    arms=tuple(Arm(name, recipe) for name, recipe in ARMS.items()),
    until="rl",
    measure=measure,
    conclude=conclude,
    headline=(
        points("dev_gain_of_nvfp4", "dev pass@1 of NVFP4 per token less bf16's {} points"),
        points("dev_gain_of_nvfp4_tensor", "per tensor {} points"),
        points("dev_gain_of_mxfp8", "MXFP8 {} points"),
        points("dev_gain_of_reciprocal", "without IEEE division {} points"),
        Told("mismatch_of_nvfp4", "mismatch of NVFP4 per token {} times bf16's"),
        Told("mismatch_of_nvfp4_tensor", "per tensor {} times"),
    ),
    draw=draw,
)

if __name__ == "__main__":
    main(CLAIM)
