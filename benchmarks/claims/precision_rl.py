"""RL in low precision: mismatch between trainer and engine, reward and stability over a hundred steps.

All arms of a seed start from the same SFT model, which was trained without rounding, and compute in fp32 except for the
experts' matmuls; bf16 is emulated like the other formats.

Mismatch is measured by the trainer's probe every ten steps, on the same weights, tokens and versions. What remains is
the difference in numerics and, without replay (`p99_off`), the experts that it flips. `async_p99` and `async_k3`
compare the trainer with samples that are up to two versions old, as RL trains on them, so they include the policy's own
change. All are in nats. `..._of_...` is an arm's difference from bf16's value, since a ratio to almost zero says
nothing.

A run's results are means over its last `LAST` steps. `drop` is how far the reward fell from its best: a run that broke
down has a large drop, or ended with non-finite numbers. The two `reciprocal` arms are NVFP4 per token whose quantiser
multiplies by reciprocals with 22 or 10 correct bits instead of dividing. How many codes that changes by itself is
counted on the SFT model, for the experts' weights and the inputs of their matmuls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from _arms import Arm
from _claim import Claim, main
from _ended import ToldEnds, all_ended, ended
from _figures import Told, in_tens, number, of_seeds, points, stated
from _outcomes import gain, mean, on_dev, outcomes, pass1
from _reciprocal import BITS, KINDS, changed
from _rows import Rows
from _verdict import NoneEnded, above, not_below

from etude.journal import RunPaths, read_metrics
from etude.lineage import LineageState
from etude.rollout import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ARMS = {
    "bf16": "rl-bf16.toml",
    "mxfp8": "rl-mxfp8.toml",
    "nvfp4": "rl-nvfp4.toml",
    "nvfp4_tensor": "rl-nvfp4-tensor.toml",
    "reciprocal": "rl-nvfp4-reciprocal.toml",
    "reciprocal10": "rl-nvfp4-reciprocal10.toml",
}
CURVES = ("reward", "solved", "mismatch_mean", "mismatch_p99", "mismatch_k3", "entropy", "grad_norm")
MODES = ("off", "on", "filter")
LAST = 20
Figures = Mapping[str, Any]
"""The figures of one run, as `measure` returns them."""


def measure(paths: RunPaths, arm: Arm) -> dict[str, Any]:
    rows = read_metrics(paths.metrics("rl"))
    end = ended(paths, "rl")
    return {
        "curves": {name: [[row["step"], round(row[name], 6)] for row in rows if name in row] for name in CURVES},
        "probes": [[row["step"], *(row[f"p99_{mode}"] for mode in MODES)] for row in rows if "p99_off" in row],
        "dev": outcomes(on_dev(paths)[-1]) if end is None else None,
        "ended": end,
        "seconds": round(LineageState.load(paths.lineage).stages["rl"].seconds, 1),
        "changed": changed(paths) if arm.name == "reciprocal" else None,
    }


def conclude(rows: Rows) -> dict[str, Any]:
    found: dict[str, Any] = {"ended": all_ended(rows)}
    for arm in ARMS:
        runs = list(rows.of(arm).values())
        found[f"seconds_{arm}"] = [run["seconds"] for run in runs]
        found[f"steps_{arm}"] = [len(run["curves"]["reward"]) for run in runs]
        for name, figure in FIGURES.items():
            found |= stated(f"{name}_{arm}", of_seeds([value for value in map(figure, runs) if value is not None]))
        found[f"dev_pass1_{arm}"] = number(_dev(rows, arm))
        if arm == "bf16":
            continue
        pairs = rows.pairs("bf16", arm)
        both = [(plain["dev"], low["dev"]) for plain, low in pairs if plain["dev"] and low["dev"]]
        found |= stated(f"dev_gain_of_{arm}", gain(both, pass1))
        for name in ("p99_off", "p99_filter", "async_p99", "drop"):
            found |= stated(f"{name}_of_{arm}", _paired(pairs, name))
    found |= stated("p99_off_of_tensor_over_token", _paired(rows.pairs("nvfp4", "nvfp4_tensor"), "p99_off"))
    counted = [figures["changed"] for figures in rows.of("reciprocal").values() if figures.get("changed")]
    for kind in KINDS:
        for bits in map(str, BITS):
            found |= stated(f"{kind}_changed_{bits}", of_seeds([shares[kind][bits] for shares in counted]))
    return found


def _end(curve: Sequence[Sequence[float]]) -> float | None:
    return fmean(value for _, value in curve[-LAST:]) if curve else None


def _thousandths(value: float | None) -> float | None:
    return None if value is None else 1000 * value


def _drop(curve: Sequence[Sequence[float]]) -> float | None:
    """How far the mean over `LAST` steps fell from its best to its last value."""
    values = [value for _, value in curve]
    if not values:
        return None
    window = min(LAST, len(values))
    means = [fmean(values[end - window : end]) for end in range(window, len(values) + 1)]
    return max(means) - means[-1]


def _probed(figures: Figures, mode: str) -> float | None:
    """Mean of the run's probes in one replay mode."""
    values = [probe[1 + MODES.index(mode)] for probe in figures.get("probes", [])]
    return fmean(values) if values else None


FIGURES: dict[str, Callable[[Figures], float | None]] = {
    "p99_off": lambda figures: _probed(figures, "off"),
    "p99_filter": lambda figures: _probed(figures, "filter"),
    "async_p99": lambda figures: _end(figures["curves"]["mismatch_p99"]),
    "async_k3_thousandths": lambda figures: _thousandths(_end(figures["curves"]["mismatch_k3"])),
    "reward": lambda figures: _end(figures["curves"]["reward"]),
    "drop": lambda figures: _drop(figures["curves"]["reward"]),
    "grad_norm": lambda figures: _end(figures["curves"]["grad_norm"]),
}
"""Figures of one run by name; None if the run ended before there was a value."""


def _paired(pairs: Sequence[tuple[Figures, Figures]], name: str) -> Estimate | None:
    """Mean over seeds of the second run's figure minus the first's."""
    found = [(FIGURES[name](plain), FIGURES[name](low)) for plain, low in pairs]
    return of_seeds([low - plain for plain, low in found if plain is not None and low is not None])


def draw(rows: Rows) -> Figure:
    from _plots import bars, panels, seeds, title

    figure, axes = panels(4)
    for axis, name, text in ((axes[0], "reward", "reward"), (axes[2], "entropy", "entropy (nats)")):
        seeds(axis, {arm: {s: in_tens(f["curves"][name]) for s, f in rows.of(arm).items()} for arm in ARMS})
        title(axis, text, "step of RL")
    probes = {arm: {s: [p[:2] for p in f.get("probes", [])] for s, f in rows.of(arm).items()} for arm in ARMS}
    seeds(axes[1], probes)
    axes[1].set_yscale("log")
    title(axes[1], "p99 of |trainer - engine|, same weights", "step of RL", "nats")
    bars(axes[3], {"dev pass@1": {arm: _dev(rows, arm) for arm in ARMS}})
    title(axes[3], "after the last step")
    return figure


def _dev(rows: Rows, arm: str) -> Estimate | None:
    return mean([figures["dev"] for figures in rows.of(arm).values() if figures["dev"]], pass1)


CLAIM = Claim(
    name="precision_rl",
    says="RL holds for a hundred steps in MXFP8 and in NVFP4 per token; per tensor trainer and engine are further "
    "apart",
    arms=tuple(Arm(name, recipe) for name, recipe in ARMS.items()),
    until="rl",
    measure=measure,
    conclude=conclude,
    decided=(
        NoneEnded("ended", ("mxfp8", "nvfp4")),
        not_below("dev_gain_of_mxfp8"),
        not_below("dev_gain_of_nvfp4"),
        above("p99_off_of_tensor_over_token"),
    ),
    headline=(
        ToldEnds("ended", "no run came apart"),
        Told("p99_off_bf16", "same weights and tokens, p99 of trainer less engine: bf16 {} nats", ".2g"),
        Told("p99_off_mxfp8", "MXFP8 {}", ".2g"),
        Told("p99_off_nvfp4", "NVFP4 per token {}", ".2g"),
        Told("p99_off_nvfp4_tensor", "per tensor {}", ".2g"),
        Told("p99_off_of_tensor_over_token", "{} more than per token", ".2g"),
        points("dev_gain_of_nvfp4", "dev pass@1 of NVFP4 per token less bf16's {} points"),
        points("dev_gain_of_nvfp4_tensor", "per tensor {} points"),
        points("dev_gain_of_mxfp8", "MXFP8 {} points"),
        Told("activations_codes_changed_22", "reciprocals of 22 bits change {} of the activations' codes", ".4%"),
        Told("activations_codes_changed_10", "of 10 bits {}", ".2%"),
        points("dev_gain_of_reciprocal", "dev pass@1 with reciprocals of 22 bits {} points"),
        points("dev_gain_of_reciprocal10", "of 10 bits {} points"),
        Told("p99_off_reciprocal", "p99 of trainer less engine with reciprocals of 22 bits {} nats", ".2g"),
        Told("p99_off_reciprocal10", "of 10 bits {}", ".2g"),
        Told("drop_of_nvfp4", "fall of the reward from its best, less bf16's: NVFP4 per token {}", "+.3f"),
        Told("drop_of_nvfp4_tensor", "per tensor {}", "+.3f"),
    ),
    draw=draw,
    about_numbers=True,
    measured=2,
)

if __name__ == "__main__":
    main(CLAIM)
