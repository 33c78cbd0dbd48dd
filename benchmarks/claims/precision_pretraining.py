"""Pretraining in low precision: the final held-out loss beside bf16's, and how much seeds differ by themselves.

All arms of a seed begin with the same weights and read the same batches, so their losses are compared seed by seed.
`seed_noise` is the standard deviation of bf16's loss between seeds; what is within it no one could tell from chance by
the loss of one run.
"""

from __future__ import annotations

from statistics import stdev
from typing import TYPE_CHECKING, Any

from _arms import Arm
from _claim import Claim, main
from _figures import Told, in_tens, interval, number, of_seeds, stated
from _rows import Rows

from etude.journal import RunPaths, read_metrics
from etude.lineage import LineageState

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOW = ("mxfp8", "nvfp4")


def measure(paths: RunPaths, arm: Arm) -> dict[str, Any]:
    record = LineageState.load(paths.lineage).stages["pretrain"]
    curve = [[row["step"], row["loss"]] for row in read_metrics(paths.metrics("pretrain"))]
    return {"loss": record.result["loss_after"], "seconds": round(record.seconds, 1), "curve": curve}


def conclude(rows: Rows) -> dict[str, Any]:
    plain = [figures["loss"] for figures in rows.of("bf16").values()]
    noise = stdev(plain) if len(plain) > 1 else None
    found: dict[str, Any] = {"loss_bf16": number(of_seeds(plain)), "seed_noise": noise and round(noise, 4)}
    for arm in LOW:
        pairs = rows.pairs("bf16", arm)
        difference = of_seeds([low["loss"] - bf16["loss"] for bf16, low in pairs])
        ends = interval(difference)
        found[f"loss_{arm}"] = number(of_seeds([low["loss"] for _, low in pairs]))
        found |= stated(f"{arm}_minus_bf16", difference)
        found[f"{arm}_within_noise"] = None if noise is None or ends is None else max(map(abs, ends)) <= noise
    return found


def draw(rows: Rows) -> Figure:
    from _plots import bars, panels, seeds, title

    figure, axes = panels(2)
    arms = ("bf16", *LOW)
    seeds(axes[0], {arm: {s: in_tens(f["curve"]) for s, f in rows.of(arm).items()} for arm in arms})
    axes[0].set_yscale("log")
    title(axes[0], "training loss", "step of pretraining")
    bars(axes[1], {"held-out loss": {arm: of_seeds([f["loss"] for f in rows.of(arm).values()]) for arm in arms}})
    title(axes[1], "after the last step")
    return figure


CLAIM = Claim(
    name="precision_pretraining",
    says="MXFP8 pretrains as bf16 does, within what seeds differ by themselves",
    arms=(Arm("bf16", "rl.toml"), Arm("mxfp8", "pretrain-mxfp8.toml"), Arm("nvfp4", "pretrain-nvfp4.toml")),
    until="pretrain",
    measure=measure,
    conclude=conclude,
    headline=(
        Told("mxfp8_minus_bf16", "loss of MXFP8 less bf16's {}", "+.4f"),
        Told("nvfp4_minus_bf16", "of NVFP4 {}", "+.4f"),
        Told("seed_noise", "seeds differ by {}", ".4f"),
    ),
    draw=draw,
)

if __name__ == "__main__":
    main(CLAIM)
