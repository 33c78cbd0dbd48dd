"""Ablation of the long phase: loss at positions beyond the base length, with the phase and with its tokens spent on
base pretraining instead. One figure per seed, on the same held-out documents, which are longer than the base length.

The arm without the phase may use what needs no training: the better of the base model as it is and the same model with
rescaled rotary frequencies counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from _arms import Arm
from _claim import Claim, main
from _figures import Told, of_seeds, stated
from _rows import Rows
from _verdict import above

from etude.journal import RunPaths
from etude.lineage import LineageState

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def measure(paths: RunPaths, arm: Arm) -> dict[str, Any]:
    result = LineageState.load(paths.lineage).stages["long"].result
    plain, after = result["late_loss_before"], result["late_loss_after"]
    if arm.name == "with":
        return {"late_loss": after, "before": plain}
    return {"late_loss": min(plain, after), "plain": plain, "rescaled": after}


def conclude(rows: Rows) -> dict[str, Any]:
    pairs = rows.pairs("with", "without")
    return {
        "with": [round(with_["late_loss"], 4) for with_, _ in pairs],
        "without": [round(without["late_loss"], 4) for _, without in pairs],
        "without_plain": [round(without["plain"], 4) for _, without in pairs],
        "without_rescaled": [round(without["rescaled"], 4) for _, without in pairs],
        **stated("late_loss_saved", of_seeds([without["late_loss"] - with_["late_loss"] for with_, without in pairs])),
    }


def draw(rows: Rows) -> Figure:
    from _plots import bars, panels, title

    figure, axes = panels(1)
    losses = {arm: of_seeds([f["late_loss"] for f in rows.of(arm).values()]) for arm in ("without", "with")}
    bars(axes[0], {"beyond the base length": losses})
    title(axes[0], "loss of late tokens", y="nats")
    return figure


CLAIM = Claim(
    name="long_phase",
    says="The long phase lowers the loss of late positions more than as many tokens of base pretraining",
    arms=(Arm("with", "rl.toml"), Arm("without", "no-long-phase.toml")),
    until="long",
    measure=measure,
    conclude=conclude,
    decided=(above("late_loss_saved"),),
    headline=(Told("late_loss_saved", "{} nats per late token saved", ".3f"),),
    draw=draw,
)

if __name__ == "__main__":
    main(CLAIM)
