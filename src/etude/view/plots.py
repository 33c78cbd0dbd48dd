"""The plots of a run. Each function draws one figure from RunData, or returns None if there is no data for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from etude.view.cores import USERS, summed
from etude.view.data import RunData
from etude.view.table import STAGES

BLUE, ORANGE, GREEN, GREY = "#3465a4", "#d9822b", "#4c956c", "#8d99ae"
FONT = 9
_USED = dict(zip(USERS, (BLUE, ORANGE, GREEN, "#8a6fb0", "#5c6370", "#b8bfca"), strict=True))
_IDLE = ("#ecc98f", "#f5e3a9", "#f3cfc0", "#e3ddea", "#f1f2f4")
_HATCHES = ("", "////", "....")
"""Hatches that distinguish the waits in the plot of cores once their colours repeat."""
_BARS = 60
"""Maximum number of bars in the plot of cores over RL's time."""
DEV_EVALUATION = "dev-step-"
"""Prefix of the names of dev evaluations during RL. The step number follows."""


def learning(data: RunData) -> Figure | None:
    """Plot the training loss of the supervised stages, one panel each, with the held-out loss where it was measured."""
    titles = {"pretrain": "base model", "long": "longer context", "mtp": "draft head (KL)", "sft": "demonstrations"}
    present = [stage for stage in titles if data.series(stage, "loss")[0]]
    if not present:
        return None
    figure, axes = panels(len(present), 2.6)
    for axis, stage in zip(axes, present, strict=True):
        steps, loss = data.series(stage, "loss")
        _draw(axis, steps, loss)
        steps, held = data.series(stage, "held_out_loss")
        if steps:
            axis.plot(steps, held, "o-", color=ORANGE, markersize=4, label="held out")
            axis.legend(frameon=False, fontsize=FONT - 2)
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter(NullFormatter())
        titled(axis, titles[stage], "step", "loss" if stage == present[0] else "")
    return figure


def reinforcement(data: RunData) -> Figure | None:
    steps, solved = data.series("rl", "solved")
    if not steps:
        return None
    figure, axes = panels(4, 2.6)
    _draw(axes[0], steps, solved, label="training rollouts")
    dev = [e for name, e in sorted(data.evaluations.items()) if name.startswith(DEV_EVALUATION)]
    for key, style, color, label in (
        ("pass1", "o-", ORANGE, "dev pass@1"),
        ("passk", "s--", GREEN, f"dev pass@{_best_of(dev)}"),
    ):
        points = [(int(e["name"].removeprefix(DEV_EVALUATION)), e[key]["mean"]) for e in dev if e.get(key)]
        if points:
            axes[0].plot([p[0] for p in points], [p[1] for p in points], style, color=color, label=label, markersize=4)
    axes[0].legend(frameon=False, fontsize=FONT - 2)
    axes[0].set_ylim(-0.02, 1.02)
    titled(axes[0], "solved", "step", "share")
    _curve(data, axes[1], "rl", "turns", "turns per rollout")
    _curve(data, axes[2], "rl", "truncated", "ran out of budget")
    _curve(data, axes[3], "rl", "claimed_but_failed", "claimed success, failed")
    return figure


def _best_of(evaluations: Sequence[dict[str, Any]]) -> int | str:
    found = {evaluation["k"] for evaluation in evaluations}
    return found.pop() if len(found) == 1 else "k"


def health(data: RunData) -> Figure | None:
    if not data.series("rl", "entropy")[0]:
        return None
    figure, axes = panels(3, 4.8, rows=2)
    _curve(data, axes[0], "rl", "entropy", "entropy (nats)")
    _curve(data, axes[1], "rl", "clipped_share", "tokens beyond the trust region")
    for name, color, label in (("mismatch_mean", BLUE, "mean"), ("mismatch_p99", ORANGE, "p99")):
        steps, values = data.series("rl", name)
        axes[2].plot(steps, values, _line(steps), color=color, label=label, markersize=4)
    if any(value > 0 for name in ("mismatch_mean", "mismatch_p99") for value in data.series("rl", name)[1]):
        axes[2].set_yscale("log")
        axes[2].tick_params(axis="y", which="both", labelsize=FONT - 2)
    axes[2].legend(frameon=False, fontsize=FONT - 2)
    titled(axes[2], "|log-prob trainer - engine|", "step", "")
    _curve(data, axes[3], "rl", "staleness", "staleness (versions)")
    _curve(data, axes[4], "rl", "masked_share", "masked rollouts, share")
    _curve(data, axes[5], "rl", "delta_share", "delta, share of full size")
    return figure


def scores(data: RunData) -> Figure | None:
    """Plot the test scores before and after RL, or the stage that replaces it, with confidence intervals."""
    tested = [(side, data.evaluations[name]) for name, side in _sides(data).items() if name in data.evaluations]
    if not tested:
        return None
    figure, (axis,) = panels(1, 3.0)
    metrics = [("pass1", "pass@1"), ("passk", f"pass@{tested[0][1].get('k', 'k')}"), ("greedy", "greedy")]
    metrics = [(key, label) for key, label in metrics if all(e.get(key) is not None for _, e in tested)]
    for place, (side, evaluation) in enumerate(tested):
        _bars(axis, place, side, [evaluation[key] for key, _ in metrics])
    _shares(axis, "test tasks solved", [label for _, label in metrics])
    return figure


def cores(data: RunData) -> Figure | None:
    """Plot the use of the CPU cores over RL's time: which processes used them, and which waits left them idle."""
    if not data.cores:
        return None
    together = -(-len(data.cores) // _BARS)
    groups = [range(place, min(place + together, len(data.cores))) for place in range(0, len(data.cores), together)]
    widths = [sum(data.cores[place].seconds for place in group) for group in groups]
    starts = [sum(widths[:number]) for number in range(len(widths))]
    bars = [summed(data.parts[place] for place in group) for group in groups]
    whole = summed(bars)
    figure, (axis,) = panels(1, 3.2)
    figure.set_figwidth(9.0)
    floor = [0.0] * len(bars)

    def layer(label: str, core_seconds: Sequence[float], color: str, hatch: str = "") -> None:
        nonlocal floor
        heights = [value / width for value, width in zip(core_seconds, widths, strict=True)]
        look = {"facecolor": color, "edgecolor": GREY, "linewidth": 0, "hatch": hatch}
        axis.bar(starts, heights, widths, bottom=floor, align="edge", label=label, **look)
        floor = [below + height for below, height in zip(floor, heights, strict=True)]

    for name in whole.users:
        layer(name, [bar.used[name] for bar in bars], _USED.get(name, GREY))
    for number, name in enumerate(whole.waits):
        again, place = divmod(number, len(_IDLE))
        layer(f"idle: {name}", [bar.idle[name] for bar in bars], _IDLE[place], _HATCHES[again % len(_HATCHES)])
    axis.set_ylim(0, max(sample.cores for sample in data.cores))
    axis.set_xlim(0, sum(widths))
    axis.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axis.grid(visible=False)
    handles, labels = axis.get_legend_handles_labels()
    axis.legend(handles[::-1], labels[::-1], frameon=False, fontsize=FONT - 1, loc="upper left", bbox_to_anchor=(1, 1))
    titled(axis, "cores, while RL ran", "seconds", "cores")
    return figure


FIGURES: dict[str, Callable[[RunData], Figure | None]] = {
    "scores": scores,
    "learning": learning,
    "reinforcement": reinforcement,
    "health": health,
    "cores": cores,
}


def draw_all(data: RunData, folder: Path) -> dict[str, Path]:
    """Write one PNG per figure that has data. Return the files by name of the figure."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn: dict[str, Path] = {}
    for name, draw in FIGURES.items():
        figure = draw(data)
        if figure is not None:
            drawn[name] = folder / f"{name}.png"
            figure.savefig(drawn[name], dpi=130)
    return drawn


def panels(count: int, height: float, rows: int = 1) -> tuple[Figure, Sequence[Axes]]:
    """Return a figure with `count` panels in each of `rows` rows, and its panels as one list."""
    figure = Figure(figsize=(max(3.0 * count, 6.0), height), layout="constrained")
    axes = figure.subplots(rows, count, squeeze=False).ravel()
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=FONT - 1)
        axis.grid(axis="y", color="#e5e7eb", linewidth=0.6)
        axis.set_axisbelow(True)
    return figure, list(axes)


def titled(axis: Any, title: str, x: str, y: str) -> None:
    axis.set_title(title, fontsize=FONT, loc="left")
    if x == "step":
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axis.set_xlabel(x, fontsize=FONT - 1)
    axis.set_ylabel(y, fontsize=FONT - 1)


def _sides(data: RunData) -> dict[str, tuple[str, str]]:
    """Map the name of each of the run's two test evaluations (before and after the last training stage) to its label
    and colour."""
    before, after = data.ends
    stage = after.removeprefix("test-")
    end = {"continued": "SFT went on", "rl": "RL"}.get(stage, STAGES.get(stage, ""))
    return {before: (f"before {end}", GREY), after: (f"after {end}", BLUE)}


def _bars(axis: Axes, place: int, side: tuple[str, str], found: Sequence[dict[str, float]]) -> None:
    """Draw the scores of one of the run's two test evaluations, each as a bar with its confidence interval. `side` is
    the evaluation's label and colour. Its bars are the left ones of each pair if `place` is 0, the right ones if it is
    1."""
    label, color = side
    errors = [[e["mean"] - e["low"] for e in found], [e["high"] - e["mean"] for e in found]]
    positions = [index + (place - 0.5) * 0.36 for index in range(len(found))]
    heights = [estimate["mean"] for estimate in found]
    whiskers = {"linewidth": 0.9, "ecolor": "#374151"}
    axis.bar(positions, heights, 0.34, yerr=errors, capsize=3, color=color, label=label, error_kw=whiskers)
    for x, estimate in zip(positions, found, strict=True):
        text = f"{100 * estimate['mean']:.0f}%"
        axis.annotate(text, (x, estimate["high"]), (0, 3), textcoords="offset points", ha="center", fontsize=8)


def _shares(axis: Axes, title: str, labels: Sequence[str]) -> None:
    axis.set_xticks(range(len(labels)), labels)
    axis.set_xlim(-0.6, len(labels) - 0.4)
    axis.set_ylim(0, 1.1)
    axis.set_yticks([0, 0.25, 0.5, 0.75, 1.0])
    axis.legend(frameon=False, fontsize=FONT - 1, loc="upper left", bbox_to_anchor=(1, 1))
    titled(axis, title, "", "share")


def _curve(data: RunData, axis: Axes, stage: str, name: str, title: str) -> None:
    steps, values = data.series(stage, name)
    if not steps:
        axis.set_axis_off()
        return
    _draw(axis, steps, values)
    axis.set_ylim(0, max(max(values) * 1.08, 1e-3))
    titled(axis, title, "step", "")


def _draw(axis: Axes, steps: Sequence[float], values: Sequence[float], label: str = "") -> None:
    """Draw the values faintly and a smoothed curve over them. A short curve also gets point markers."""
    axis.plot(steps, values, color=GREY, linewidth=0.8, alpha=0.6)
    axis.plot(steps, _smooth(values), _line(steps), color=BLUE, linewidth=1.6, label=label or None, markersize=4)


def _line(steps: Sequence[float]) -> str:
    return "-" if len(steps) > 12 else "o-"


def _smooth(values: Sequence[float]) -> list[float]:
    """Smooth by a centred moving average over about a tenth of the curve; the window shrinks towards the ends."""
    reach = max(len(values) // 20, 2)
    smooth: list[float] = []
    for place in range(len(values)):
        near = min(reach, place, len(values) - 1 - place)
        smooth.append(fmean(values[place - near : place + near + 1]))
    return smooth
