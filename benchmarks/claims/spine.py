"""RL raises pass@1 and pass@k on unseen tasks, compared with SFT and with SFT continued for the same time."""

from __future__ import annotations

import json
from statistics import fmean
from typing import TYPE_CHECKING, Any

from _arms import Arm
from _claim import Claim, main
from _figures import ToldChange, interval, number, points
from _outcomes import at, behaviour, gain, gains, greedy, mean, on_dev, outcomes, pass1
from _rows import Rows
from _verdict import above

from etude.journal import RunPaths, read_metrics
from etude.lineage import LineageState

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BEST_OF = 8
WHEN = ("before", "after")
PANELS = {
    "rollouts": ("truncated", "claimed_but_failed"),
    "entropy (nats)": ("entropy",),
    "tokens beyond the trust region": ("clipped_share",),
    "|log-prob trainer - engine|, p99": ("mismatch_p99",),
    "staleness (versions)": ("staleness",),
    "masked rollouts": ("masked_share",),
}
"""Plot panels of RL's health over its steps: title and metrics."""
LABELS = {"truncated": "ran out of budget", "claimed_but_failed": "claimed success, failed"}
CURVES = tuple(name for names in PANELS.values() for name in names)


def _as_long_as_rl(rows: Rows, seed: int) -> list[str] | None:
    row = rows.get("rl", seed)
    return None if row is None else [f"continued.seconds={row.figures['learning_seconds']}"]


def measure(paths: RunPaths, arm: Arm) -> dict[str, Any]:
    stages = LineageState.load(paths.lineage).stages
    folders = {"sft": paths.evaluation("test-sft"), arm.name: paths.evaluation(f"test-{arm.name}")}
    dev = [json.loads((folder / "summary.json").read_text(encoding="utf-8")) for folder in on_dev(paths)]
    rl, sft = (read_metrics(paths.metrics(stage)) for stage in ("rl", "sft"))
    before = json.loads((folders["sft"] / "summary.json").read_text(encoding="utf-8"))
    capped = {
        when: paths.evaluation(f"{folder.name}-one-edit") for when, folder in zip(WHEN, folders.values(), strict=True)
    }
    return {
        "one_edit": {when: outcomes(folder) for when, folder in capped.items() if folder.exists()},
        "seconds": {name: round(record.seconds, 1) for name, record in stages.items()},
        # Until the last step: RL's evaluations come after it, and nothing is learnt in them.
        "learning_seconds": round(rl[-1]["elapsed"], 1) if rl else None,
        "sft_held_out": [[row["step"], row["held_out_loss"]] for row in sft if "held_out_loss" in row],
        "valid_calls": before["valid_calls"],
        "before": outcomes(folders["sft"]),
        "after": outcomes(folders[arm.name]),
        "behaviour": {name: behaviour(folder) for name, folder in folders.items()},
        "dev": [
            [int(e["name"].rpartition("-")[2]), e["pass1"]["mean"], e["passk"]["mean"] if e["passk"] else None, e["k"]]
            for e in dev
        ],
        "curves": {name: [[row["step"], row[name]] for row in rl if name in row] for name in CURVES},
    }


def conclude(rows: Rows) -> dict[str, Any]:
    rl, continued = rows.of("rl"), rows.of("continued")
    pairs = [(figures["before"], figures["after"]) for figures in rl.values()]
    against = [(other["after"], figures["after"]) for figures, other in rows.pairs("rl", "continued")]
    ends = [figures["behaviour"] for figures in rl.values()]
    counts = [len(figures["after"]) for figures in rl.values()]
    parsed = [figures["valid_calls"] for figures in rl.values() if "valid_calls" in figures]
    capped = [tuple(figures.get("one_edit", {}).get(when, {}) for when in WHEN) for figures in rl.values()]
    one_edit = [(before, after) for before, after in capped if before and after]
    return {
        "tasks": counts[0] if counts else None,
        "k": BEST_OF,
        "sft_pass1": number(mean([before for before, _ in pairs], pass1)),
        "sft_greedy": number(mean([before for before, _ in pairs], greedy)),
        "rl_pass1": number(mean([after for _, after in pairs], pass1)),
        "rl_greedy": number(mean([after for _, after in pairs], greedy)),
        "continued_pass1": number(mean([figures["after"] for figures in continued.values()], pass1)),
        **gains("pass1_gain", pairs, pass1),
        **gains("greedy_gain", pairs, greedy),
        **gains("pass8_gain", pairs, at(BEST_OF)),
        **gains("gain_over_sft_continued", against, pass1),
        **gains("pass8_gain_over_sft_continued", against, at(BEST_OF)),
        "cells": _cells(pairs),
        **_ends(ends, "first_edit"),
        "one_edit_before": number(mean([before for before, _ in one_edit], pass1)),
        "one_edit_after": number(mean([after for _, after in one_edit], pass1)),
        **gains("one_edit_gain", one_edit, pass1),
        **_ends(ends, "truncated"),
        **_ends(ends, "turns_per_solved"),
        **_ends(ends, "tokens_per_solved"),
        **_ends(ends, "turns_spent_per_solved"),
        **_ends(ends, "tokens_spent_per_solved"),
        **_ends(ends, "claimed_but_failed", "false_claims"),
        "sft_valid_calls": round(fmean(parsed), 4) if parsed else None,
        "sft_held_out": [figures.get("sft_held_out", [])[-3:] for figures in rl.values()],
        "minutes_per_seed": [round(sum(figures["seconds"].values()) / 60, 1) for figures in rl.values()],
    }


def _cells(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
    """For each cell: tasks, pass@1 before and after, and the gain's interval. Empty if the tasks have no cells."""
    names = sorted({task["cell"] for before, _ in pairs for task in before.values()} - {""})
    found = {}
    for name in names:
        of_cell = [
            tuple({key: task for key, task in side.items() if task["cell"] == name} for side in pair) for pair in pairs
        ]
        split = [(before, after) for before, after in of_cell]
        found[name] = {
            "tasks": sum(len(before) for before, _ in split),
            "before": number(mean([before for before, _ in split], pass1)),
            "after": number(mean([after for _, after in split], pass1)),
            "gain_ci": interval(gain(split, pass1)),
        }
    return found


def _ends(ends: list[dict[str, dict[str, float]]], key: str, name: str = "") -> dict[str, float | None]:
    """Mean of a behaviour figure before and after RL; None if the rows are older than the figure."""

    def average(stage: str) -> float | None:
        found = [end[stage][key] for end in ends if key in end[stage]]
        return round(sum(found) / len(found), 4) if found else None

    return {f"{name or key}_before": average("sft"), f"{name or key}_after": average("rl")}


def draw(rows: Rows) -> Figure:
    from _plots import bars, panels, seeds, title

    rl, continued = rows.of("rl"), rows.of("continued")
    figure, axes = panels(4, rows=2)
    evaluations = {
        "SFT": [figures["before"] for figures in rl.values()],
        "SFT continued": [figures["after"] for figures in continued.values()],
        "RL": [figures["after"] for figures in rl.values()],
    }
    scores = {"pass@1": pass1, "greedy": greedy, f"pass@{BEST_OF}": at(BEST_OF)}
    bars(axes[0], {name: {arm: mean(found, s) for arm, found in evaluations.items()} for name, s in scores.items()})
    title(axes[0], "test tasks solved", y="share")
    points = {seed: figures["dev"] for seed, figures in rl.items()}
    best = max((k for found in points.values() for _, _, _, k in found), default=0)
    seeds(
        axes[1],
        {
            "average": {seed: [(step, one) for step, one, _, _ in found] for seed, found in points.items()},
            f"best of {best}": {
                seed: [(step, many) for step, _, many, _ in found if many is not None] for seed, found in points.items()
            },
        },
    )
    title(axes[1], "dev tasks solved", "step of RL")
    for axis, (name, of) in zip(axes[2:], PANELS.items(), strict=True):
        seeds(axis, {LABELS.get(one, one): {seed: f["curves"][one] for seed, f in rl.items()} for one in of})
        title(axis, name, "step of RL")
    return figure


CLAIM = Claim(
    name="spine",
    says="RL raises the average, the greedy score and the best of 8 on unseen tasks, and the average more than SFT "
    "continued for as long",
    arms=(Arm("rl", "spine-rl.toml"), Arm("continued", "sft-continued.toml", _as_long_as_rl)),
    until="evaluate",
    measure=measure,
    conclude=conclude,
    decided=tuple(map(above, ("pass1_gain", "greedy_gain", "pass8_gain", "gain_over_sft_continued"))),
    headline=(
        points("pass1_gain", "pass@1 {} points"),
        ToldChange("sft_pass1", "{} %", ".1f", 100.0, "rl_pass1"),
        points("greedy_gain", "greedy {} points"),
        points("pass8_gain", f"pass@{BEST_OF} {{}} points"),
        points("gain_over_sft_continued", "over SFT continued {} points"),
        points("pass8_gain_over_sft_continued", f"over its pass@{BEST_OF} {{}} points"),
        ToldChange("tokens_per_solved_before", "tokens of a solved rollout {}", ".0f", after="tokens_per_solved_after"),
        ToldChange(
            "tokens_spent_per_solved_before",
            "spent for each, failures included, {}",
            ".0f",
            after="tokens_spent_per_solved_after",
        ),
        ToldChange(
            "false_claims_before",
            "rollouts that claim success and have failed {} %",
            ".1f",
            100.0,
            "false_claims_after",
        ),
    ),
    draw=draw,
)

if __name__ == "__main__":
    main(CLAIM)
