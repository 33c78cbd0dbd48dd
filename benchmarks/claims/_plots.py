"""Plot helpers of the claims: few colours, one scale per panel, every seed visible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from etude.rollout import Estimate

BLUE, ORANGE, GREEN, GREY, RED = "#3465a4", "#d9822b", "#4c956c", "#8d99ae", "#b4442f"
PURPLE = "#7b5ea7"
COLORS = (GREY, ORANGE, BLUE, GREEN, RED, PURPLE)
STYLES = ("-", "--", ":", "-.")
_FEW = 20
"""Curves with at most this many points get markers; more markers would hide the line's style."""
_FONT = 9


def panels(count: int, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """Return a figure with `count` panels in each row."""
    figure = Figure(figsize=(max(3.2 * count, 4.5), 2.8 * rows), layout="constrained")
    axes = list(figure.subplots(rows, count, squeeze=False).ravel())
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=_FONT - 1)
        axis.grid(axis="y", color="#e5e7eb", linewidth=0.6)
        axis.set_axisbelow(True)
    return figure, axes


def title(axis: Axes, text: str, x: str = "", y: str = "") -> None:
    axis.set_title(text, fontsize=_FONT, loc="left")
    axis.set_xlabel(x, fontsize=_FONT - 1)
    axis.set_ylabel(y, fontsize=_FONT - 1)


def bars(axis: Axes, groups: Mapping[str, Mapping[str, Estimate | None]]) -> None:
    """Draw groups of bars with intervals from {metric: {arm: estimate}}; a missing estimate leaves a gap."""
    arms = list(dict.fromkeys(arm for group in groups.values() for arm in group))
    width = 0.8 / max(len(arms), 1)
    for place, arm in enumerate(arms):
        found = [(x, group[arm]) for x, group in enumerate(groups.values()) if group.get(arm) is not None]
        middle = [x + (place - (len(arms) - 1) / 2) * width for x, _ in found]
        means = [e.mean for _, e in found if e]
        errors = [[e.mean - e.low for _, e in found if e], [e.high - e.mean for _, e in found if e]]
        color = COLORS[place % len(COLORS)]
        axis.bar(
            middle, means, width * 0.92, yerr=errors, capsize=2, color=color, label=arm, error_kw={"linewidth": 0.9}
        )
    axis.set_xticks(range(len(groups)), list(groups), fontsize=_FONT - 1)
    axis.set_ylim(top=1.3 * axis.get_ylim()[1])  # the legend stands above the bars
    legend(axis, loc="upper left", ncols=2)


def seeds(axis: Axes, lines: Mapping[str, Mapping[int, Sequence[tuple[float, float]]]]) -> None:
    """Draw a thin line per seed and arm from {arm: {seed: points}}: colour for the arm, line style for the seed."""
    styles = dict(zip(sorted({seed for by_seed in lines.values() for seed in by_seed}), cycle(STYLES), strict=False))
    for place, (arm, by_seed) in enumerate(lines.items()):
        color = COLORS[(place + 1) % len(COLORS)]
        for number, (seed, points) in enumerate(by_seed.items()):
            x, y = zip(*points, strict=True) if points else ((), ())
            label = arm if number == 0 else None
            marker = "o" if len(points) <= _FEW else ""
            axis.plot(x, y, marker=marker, ls=styles[seed], color=color, linewidth=1.2, markersize=3, label=label)
    if len(lines) > 1:
        legend(axis)
    figure = axis.get_figure(root=True)
    if len(styles) > 1 and figure is not None and not figure.legends:
        told = [Line2D([], [], color="#6b7280", linestyle=style, label=f"seed {s}") for s, style in styles.items()]
        figure.legend(handles=told, loc="outside lower center", ncols=len(told), frameon=False, fontsize=_FONT - 2)


def legend(axis: Axes, **where: str | int) -> None:
    if axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False, fontsize=_FONT - 2, **where)
