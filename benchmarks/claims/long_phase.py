"""The long phase, shown by its absence: loss beyond the base length, with it and with its tokens spent on base
pretraining instead. One figure per seed: the same held-out documents, longer than the base length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from _arms import Arm
from _claim import Claim, main
from _outcomes import interval, number
from _rows import Rows

from etude.journal import RunPaths
from etude.lineage import LineageState
from etude.rollout import across_seeds

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def measure(paths: RunPaths, arm: Arm) -> dict[str, Any]:
    """The absence is measured by the base model as it is; its rescaled twin, untrained, is told beside."""
    result = LineageState.load(paths.lineage).stages["long"].result
    rescaled = result["late_loss_after"]
    return {"late_loss": rescaled if arm.name == "with" else result["late_loss_before"], "rescaled": rescaled}


def conclude(rows: Rows) -> dict[str, Any]:
    pairs = rows.pairs("with", "without")
    saved = across_seeds([without["late_loss"] - with_["late_loss"] for with_, without in pairs])
    return {
        "with": [round(with_["late_loss"], 4) for with_, _ in pairs],
        "without": [round(without["late_loss"], 4) for _, without in pairs],
        "without_rescaled": [round(without["rescaled"], 4) for _, without in pairs],
        "late_loss_saved": number(saved),
        "late_loss_saved_ci": interval(saved),
    }


def headline(found: Mapping[str, Any]) -> str:
    if found["late_loss_saved"] is None:
        return ""
    low, high = found["late_loss_saved_ci"]
    return f"{found['late_loss_saved']:.3f} nats per late token saved, 95 %: {low:.3f} to {high:.3f}"


def draw(rows: Rows) -> Figure | None:
    from _plots import bars, panels, title

    figure, axes = panels(1)
    losses = {arm: across_seeds([f["late_loss"] for f in rows.of(arm).values()]) for arm in ("without", "with")}
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
    headline=headline,
    draw=draw,
)

if __name__ == "__main__":
    main(CLAIM)
