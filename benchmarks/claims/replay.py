"""Router replay off, on, and with its filter: mismatch between trainer and engine on the same batches, and pass@1 on
dev after training in each mode.

The p99 of |delta log-prob| in all three modes is measured in the run that trains with the filter, by the trainer's
probe, on the same weights, tokens and experts. The two other runs show the results of training in the other modes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from _arms import Arm
from _claim import Claim, main
from _figures import Told, number, of_seeds, points, stated
from _outcomes import gain, mean, on_dev, outcomes, pass1
from _rows import Rows
from _verdict import below

from etude.journal import RunPaths, read_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODES = ("off", "on", "filter")


def measure(paths: RunPaths, arm: Arm) -> dict[str, Any]:
    rl = read_metrics(paths.metrics("rl"))
    probes = [[row["step"], *(row[f"p99_{mode}"] for mode in MODES)] for row in rl if "p99_off" in row]
    trained = [row["mismatch_p99"] for row in rl if "mismatch_p99" in row]
    return {
        "probes": probes,
        "mismatch_p99": sum(trained) / len(trained) if trained else None,
        "dev": outcomes(on_dev(paths)[-1]),
    }


def conclude(rows: Rows) -> dict[str, Any]:
    probed = [_means(figures["probes"]) for figures in rows.of("filter").values() if figures["probes"]]
    found: dict[str, Any] = {}
    for place, mode in enumerate(MODES):
        found[f"p99_{mode}"] = [round(means[place], 5) for means in probed]
        found[f"dev_pass1_{mode}"] = number(mean([f["dev"] for f in rows.of(mode).values()], pass1))
    for mode in ("on", "filter"):
        ratios = [means[MODES.index(mode)] / means[0] for means in probed if means[0] > 0]
        found |= stated(f"p99_{mode}_of_off", of_seeds(ratios))
        pairs = [(off["dev"], replayed["dev"]) for off, replayed in rows.pairs("off", mode)]
        found |= stated(f"dev_gain_of_{mode}", gain(pairs, pass1))
    return found


def draw(rows: Rows) -> Figure:
    from _plots import bars, panels, seeds, title

    figure, axes = panels(2)
    runs = rows.of("filter")
    points = {
        mode: {seed: [(p[0], p[1 + place]) for p in f["probes"]] for seed, f in runs.items()}
        for place, mode in enumerate(MODES)
    }
    seeds(axes[0], points)
    title(axes[0], "p99 of |log-prob trainer - engine|", "step of RL")
    dev = {mode: mean([f["dev"] for f in rows.of(mode).values()], pass1) for mode in MODES}
    bars(axes[1], {"dev pass@1": dev})
    title(axes[1], "trained with replay off, on, filtered")
    return figure


def _means(probes: list[list[float]]) -> list[float]:
    return [sum(column) / len(column) for column in list(zip(*probes, strict=True))[1:]]


CLAIM = Claim(
    name="replay",
    says="Replaying the engine's experts shrinks the mismatch between trainer and engine",
    arms=(Arm("off", "replay-off.toml"), Arm("on", "replay-on.toml"), Arm("filter", "rl.toml")),
    until="rl",
    measure=measure,
    conclude=conclude,
    decided=(below("p99_filter_of_off", 1.0),),
    headline=(
        Told("p99_filter_of_off", "p99 of the mismatch {} % of that without", ".0f", 100.0),
        points("dev_gain_of_filter", "dev pass@1 {} points"),
    ),
    draw=draw,
)

if __name__ == "__main__":
    main(CLAIM)
