"""The plot of `etude bench base`: one panel for each measure that was taken."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from etude.bench import ModelResult, Rebuild, unchanged_score
from etude.rollout.statistics import Estimate
from etude.view.plots import BLUE, FONT, GREEN, GREY, ORANGE, panels, titled

_COLORS = (BLUE, ORANGE, GREEN, "#8a6fb0", "#b5534a", "#5c6370", "#3b8f9e", "#a8883b")
_MARKERS = "os^Dv<>P"
_LONGEST_NAME = 28


def draw_base(results: Sequence[ModelResult], items: Sequence[Rebuild], path: Path) -> None:
    """Write the plot as PNG."""
    read = [result for result in results if result.reading and math.isfinite(result.reading.bits_per_byte)]
    tracked = [result for result in results if result.wrong is not None]
    asked = [result for result in results if result.right is not None]
    shown = sum(map(bool, (read, tracked, asked)))
    if not shown:
        return
    figure, axes = panels(shown, 1.9 + 0.28 * max(4, len(results)))
    figure.set_figwidth(max(5.0, 4.2 * shown))
    left = iter(axes)
    colors = {result.name: _COLORS[place % len(_COLORS)] for place, result in enumerate(results)}
    if read:
        values = [(result.name, result.reading.bits_per_byte, None) for result in read if result.reading]
        axis = next(left)
        _bars(axis, values, colors, "bits per byte of code (lower is better)", "{:.2f}")
        axis.set_xlim(0, 1.15 * max(value for _, value, _ in values))
    if tracked:
        _curves(next(left), tracked, items, colors)
    if asked:
        shares = [(result.name, found.mean, found) for result in asked if (found := result.right)]
        axis = next(left)
        _bars(axis, shares, colors, "questions answered right (higher is better)", "{:.0%}")
        axis.set_xlim(0, 1.12)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    figure.savefig(path, dpi=130)


def _bars(
    axis: Axes,
    values: Sequence[tuple[str, float, Estimate | None]],
    colors: dict[str, str],
    title: str,
    text: str,
) -> None:
    """Draw one bar for each model, the first on top, with its interval if there is one."""
    places = np.arange(len(values))[::-1]
    for place, (name, value, found) in zip(places, values, strict=True):
        ends = None if found is None else [[value - found.low], [found.high - value]]
        axis.barh(place, value, 0.62, xerr=ends, capsize=3, color=colors[name], error_kw={"linewidth": 0.9})
        right = value if found is None else found.high
        axis.annotate(text.format(value), (right, place), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axis.set_yticks(places, [_named(name) for name, _, _ in values])
    axis.set_ylim(-0.6, len(values) - 0.4)
    axis.grid(axis="y", visible=False)
    axis.grid(axis="x", color="#e5e7eb", linewidth=0.6)
    titled(axis, title, "", "")


def _curves(axis: Axes, results: Sequence[ModelResult], items: Sequence[Rebuild], colors: dict[str, str]) -> None:
    for place, result in enumerate(results):
        found = result.wrong_by_changes
        (line,) = axis.plot(list(found), list(found.values()), linewidth=1.5, label=_named(result.name))
        line.set(color=colors[result.name], marker=_MARKERS[place % len(_MARKERS)], markersize=4)
    changes = sorted({len(item.diffs) for item in items})
    unchanged = [float(np.mean([unchanged_score(i) for i in items if len(i.diffs) == n])) for n in changes]
    axis.plot(changes, unchanged, "--", color=GREY, linewidth=1.2, label="first version, unchanged")
    axis.set_xscale("log", base=2)
    axis.set_xticks(changes, [str(number) for number in changes])
    axis.minorticks_off()
    axis.set_ylim(-0.03, 1.03)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axis.legend(frameon=False, fontsize=FONT - 2)
    titled(axis, "rebuilt files, wrong characters (lower is better)", "changes", "")


def _named(name: str) -> str:
    """Return a name that fits beside a bar. Dollar signs would begin a formula."""
    plain = "".join(sign if sign.isprintable() else "?" for sign in name).replace("$", r"\$")
    return plain if len(plain) <= _LONGEST_NAME else f"{plain[: _LONGEST_NAME - 1]}…"
