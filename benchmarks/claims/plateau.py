"""SFT is long enough: training twice as long on the same demonstrations improves neither SFT nor RL after it. So RL's
gain does not come from a weak start.

"No gain shown" is not equality, so the interval is reported. The held-out loss, which may still fall a little, is
reported beside the share of tasks solved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from _arms import Arm
from _claim import Claim, main
from _figures import Told, number, of_seeds, points, stated
from _outcomes import before_and_after, gains, mean, pass1
from _rows import Rows
from _verdict import not_above

from etude.journal import RunPaths, read_metrics
from etude.lineage import LineageState

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ARMS = {"recipe": "rl.toml", "twice": "sft-twice.toml"}
WHEN = ("before", "after")


def measure(paths: RunPaths, arm: Arm) -> dict[str, Any]:
    sft = read_metrics(paths.metrics("sft"))
    held_out = [[row["step"], row["held_out_loss"]] for row in sft if "held_out_loss" in row]
    loss = LineageState.load(paths.lineage).stages["sft"].result["loss_after"]
    return {"loss": loss, "held_out": held_out, **before_and_after(paths, arm)}


def conclude(rows: Rows) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for arm in ARMS:
        runs = list(rows.of(arm).values())
        found[f"loss_{arm}"] = [round(figures["loss"], 4) for figures in runs]
        for when in WHEN:
            found[f"pass1_{when}_{arm}"] = number(mean([figures[when] for figures in runs], pass1))
    pairs = rows.pairs("recipe", "twice")
    for when in WHEN:
        found |= gains(f"gain_{when}", [(recipe[when], twice[when]) for recipe, twice in pairs], pass1)
    losses = of_seeds([twice["loss"] - recipe["loss"] for recipe, twice in pairs])
    return found | stated("loss_twice_minus_recipe", losses)


def draw(rows: Rows) -> Figure:
    from _plots import bars, panels, seeds, title

    figure, axes = panels(2)
    seeds(axes[0], {arm: {seed: f["held_out"] for seed, f in rows.of(arm).items()} for arm in ARMS})
    title(axes[0], "loss on held-out demonstrations", "step of SFT", "nats")
    solved = {
        f"{when} RL": {arm: mean([f[when] for f in rows.of(arm).values()], pass1) for arm in ARMS} for when in WHEN
    }
    bars(axes[1], solved)
    title(axes[1], "dev pass@1")
    return figure


CLAIM = Claim(
    name="plateau",
    says="SFT is long enough: twice as long solves no more, neither before RL nor after it",
    arms=tuple(Arm(name, recipe) for name, recipe in ARMS.items()),
    until="rl",
    measure=measure,
    conclude=conclude,
    decided=(not_above("gain_before"), not_above("gain_after")),
    headline=(
        points("gain_after", "after RL twice as long gives dev pass@1 {} points"),
        points("gain_before", "before it {} points"),
        Told("loss_twice_minus_recipe", "held-out loss {}", "+.4f"),
    ),
    draw=draw,
)

if __name__ == "__main__":
    main(CLAIM)
