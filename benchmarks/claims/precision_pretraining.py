"""Pretraining in low precision: the final held-out loss compared with bf16's, and with the noise between seeds.

All arms of a seed start from the same weights and read the same batches, so losses are compared seed by seed.
`seed_noise` is the standard deviation of bf16's loss between seeds; a smaller difference could not be told from chance
by one run's loss.
"""

from __future__ import annotations

from statistics import stdev
from typing import TYPE_CHECKING, Any

from _arms import Arm
from _claim import Claim, main
from _ended import ToldEnds, all_ended, ended
from _figures import Told, in_tens, number, of_seeds, stated
from _rows import Rows
from _verdict import NoneEnded, Within

from etude.journal import RunPaths, read_metrics
from etude.lineage import LineageState

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOW = ("mxfp8", "nvfp4")


def measure(paths: RunPaths, arm: Arm) -> dict[str, Any]:
    record = LineageState.load(paths.lineage).stages["pretrain"]
    curve = [[row["step"], row["loss"]] for row in read_metrics(paths.metrics("pretrain"))]
    end = ended(paths, "pretrain")
    loss = record.result["loss_after"] if end is None else None
    return {"loss": loss, "seconds": round(record.seconds, 1), "curve": curve, "ended": end}


def conclude(rows: Rows) -> dict[str, Any]:
    plain = _losses(rows, "bf16")
    noise = stdev(plain) if len(plain) > 1 else None
    found: dict[str, Any] = {"loss_bf16": number(of_seeds(plain)), "seed_noise": noise and round(noise, 4)}
    found["ended"] = all_ended(rows)
    for arm in LOW:
        pairs = [(bf16["loss"], low["loss"]) for bf16, low in rows.pairs("bf16", arm)]
        difference = of_seeds([low - bf16 for bf16, low in pairs if bf16 is not None and low is not None])
        found[f"loss_{arm}"] = number(of_seeds(_losses(rows, arm)))
        found |= stated(f"{arm}_minus_bf16", difference)
    return found


def _losses(rows: Rows, arm: str) -> list[float]:
    """Losses of the arm's runs that were not ended by non-finite numbers."""
    return [figures["loss"] for figures in rows.of(arm).values() if figures["loss"] is not None]


def draw(rows: Rows) -> Figure:
    from _plots import bars, panels, seeds, title

    figure, axes = panels(2)
    arms = ("bf16", *LOW)
    seeds(axes[0], {arm: {s: in_tens(f["curve"]) for s, f in rows.of(arm).items()} for arm in arms})
    axes[0].set_yscale("log")
    title(axes[0], "training loss", "step of pretraining")
    bars(axes[1], {"held-out loss": {arm: of_seeds(_losses(rows, arm)) for arm in arms}})
    title(axes[1], "after the last step")
    return figure


CLAIM = Claim(
    name="precision_pretraining",
    says="MXFP8 pretrains as bf16 does, within what seeds differ by themselves",
    arms=(Arm("bf16", "rl.toml"), Arm("mxfp8", "pretrain-mxfp8.toml"), Arm("nvfp4", "pretrain-nvfp4.toml")),
    until="pretrain",
    measure=measure,
    conclude=conclude,
    decided=(NoneEnded("ended", ("mxfp8",)), Within("mxfp8_minus_bf16", "seed_noise")),
    headline=(
        ToldEnds("ended", "no run came apart"),
        Told("mxfp8_minus_bf16", "loss of MXFP8 less bf16's {}", "+.4f"),
        Told("nvfp4_minus_bf16", "of NVFP4 {}", "+.4f"),
        Told("seed_noise", "seeds differ by {}", ".4f"),
    ),
    draw=draw,
    about_numbers=True,
)

if __name__ == "__main__":
    main(CLAIM)
