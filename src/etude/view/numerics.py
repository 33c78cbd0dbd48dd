"""Table and plot of `etude doctor numerics`: how each number format changes the results of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from etude.view.plots import BLUE, FONT, GREEN, GREY, ORANGE, panels, titled

RED = "#a23b3b"
_COLOURS = {"bf16": GREY, "mxfp8": BLUE, "fp8_block": GREEN, "nvfp4": ORANGE, "nvfp4_tensor": RED}
_MARKERS = "os^"
"""Plot markers for the different ways of feeding tokens to the engine."""
_SPREAD = ("mean", "p99", "max")
_AGAINST_FP32 = (
    "against fp32",
    "layer",
    *("experts mean", "p99", "max"),
    *("stream mean", "p99", "max"),
    "weights",
    "flips",
)
_AGAINST_ENGINE = ("trainer - engine", "fed", "tokens", *_SPREAD, "k3", "flips")


def numerics_table(found: dict[str, Any]) -> str:
    """Return a NumericsReport, given as a dict, as text."""
    lines = [f"{found['run']}: a checkpoint; its weights alone are looked at"]
    if found["stage"]:
        lines = [f"{found['run']}, {found['stage']}: trained in {found['own']}, computes in {found['dtype']}"]
    if found["formats"]:
        lines += [f"{found['sequences']} held-out demonstrations, {found['tokens']} tokens", ""]
        lines += [*_aligned([_AGAINST_FP32, *_layers(found)]), "", *_aligned([_AGAINST_ENGINE, *_ways(found)])]
    lines += [f"left out: {name}: {why}" for name, why in found["left_out"].items()]
    lines += [f"look at {doubt['where']}: it {doubt['problem']}" for doubt in found["doubts"]]
    lines += [f"{fault['where']} {fault['problem']}" for fault in found["faults"]]
    return "\n".join([*lines, "", "blessed" if found["blessed"] else "not blessed"])


def draw_numerics(found: dict[str, Any], file: Path) -> None:
    """Draw, per layer, how much each number format deviates from fp32, and per format the difference between trainer
    and engine. `found` must contain at least one format."""
    figure, axes = panels(2, 6.0, rows=2)
    figure.set_figwidth(9.0)
    for one in found["formats"]:
        routed = [layer for layer in one["layers"] if layer["experts"]]
        _curve(axes[0], one["name"], routed, [_visible(layer["experts"]["mean"]) for layer in routed])
        _curve(axes[1], one["name"], one["layers"], [_visible(layer["residual"]["mean"]) for layer in one["layers"]])
        _curve(axes[2], one["name"], routed, [layer["flips"] for layer in routed])
    for axis, title in ((axes[0], "experts, each layer alone"), (axes[1], "residual stream, with all before it")):
        axis.set_yscale("log")
        titled(axis, title, "layer", "error against fp32, mean")
    axes[2].set_ylim(bottom=0)
    axes[2].yaxis.set_major_formatter(PercentFormatter(1))
    titled(axes[2], "picks of experts that fp32 has not", "layer", "")
    for axis in axes[:3]:
        axis.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    _apart(axes[3], found["formats"])
    figure.legend(
        *axes[1].get_legend_handles_labels(), ncols=5, loc="outside upper center", frameon=False, fontsize=FONT
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=130)


def _curve(axis: Axes, name: str, layers: Sequence[dict[str, Any]], values: Sequence[float]) -> None:
    line = "o--" if name == "nvfp4_tensor" else "o-"  # dashed, since it often covers the line of nvfp4
    axis.plot([layer["layer"] for layer in layers], values, line, color=_COLOURS[name], label=name, markersize=4)


def _apart(axis: Axes, formats: Sequence[dict[str, Any]]) -> None:
    """Draw the difference of log-probs between trainer and engine, per format and way of feeding the engine: a line
    from mean to max with a tick at p99."""
    for place, one in enumerate(formats):
        for side, (way, marker) in enumerate(zip(one["engine"], _MARKERS, strict=True)):
            spread = {key: _visible(value) for key, value in one["engine"][way]["logprobs"].items()}
            x, colour = place + (side - 1) * 0.22, _COLOURS[one["name"]]
            axis.plot([x, x], [spread["mean"], spread["max"]], "-", color=colour, linewidth=1.2)
            axis.plot([x], [spread["mean"]], marker, color=colour, markersize=4)
            axis.plot([x, x], [spread["p99"], spread["max"]], "_", color=colour, markersize=7)
    for way, marker in zip(formats[0]["engine"], _MARKERS, strict=True):
        axis.plot([], [], marker, color="black", markersize=4, label=way)
    axis.set_yscale("log")
    axis.set_xticks(range(len(formats)), [one["name"] for one in formats])
    axis.legend(ncols=3, frameon=False, fontsize=FONT - 1, loc="upper center", bbox_to_anchor=(0.5, -0.08))
    titled(axis, "|trainer - engine|, log-probs: mean, p99 and max", "", "nats")


def _visible(value: float) -> float:
    """Replace 0, which a logarithmic axis cannot show, by a tiny value."""
    return max(value, 1e-9)


def _layers(found: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for one in found["formats"]:
        for layer in one["layers"]:
            experts = _numbers(layer["experts"]) if layer["experts"] else ("",) * 3
            weights = f"{layer['weights']['mean']:.2g}" if layer["weights"] else ""
            picks = f"{layer['flips']:.2%}" if layer["experts"] else ""
            yield one["name"], str(layer["layer"]), *experts, *_numbers(layer["residual"]), weights, picks


def _ways(found: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for one in found["formats"]:
        for way, said in one["engine"].items():
            picks = f"{max(said['flips'], default=0):.2%}"
            yield one["name"], way, str(said["tokens"]), *_numbers(said["logprobs"]), f"{said['k3']:.2g}", picks


def _numbers(spread: dict[str, float]) -> tuple[str, ...]:
    return tuple(f"{spread[key]:.2g}" for key in _SPREAD)


def _aligned(rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Pad the columns of a table to equal width; names are left-aligned and numbers right-aligned."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    first = 2 if rows[0] == _AGAINST_ENGINE else 1
    return [
        "  ".join(
            f"{cell:<{width}}" if n < first else f"{cell:>{width}}"
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
