"""Self-summaries on and off with the same small context window: pass@1 on the dev tasks that need them.

A task needs summaries if an agent with the full window and the same number of turns uses more tokens for it than the
small window holds, by the median over its solved rollouts. Neither of the compared arms influences this split. Tasks
that the full-window agent does not solve are left out, since nobody knows whether they would need summaries.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from _arms import Arm
from _claim import Claim, main
from _figures import Told, number, points
from _outcomes import Outcomes, before_and_after, gains, mean, on_dev, only, pass1
from _rows import Rows
from _verdict import above

from etude.journal import RunPaths
from etude.rollout import read_samples
from etude.trace.file import read_traces

if TYPE_CHECKING:
    from matplotlib.figure import Figure


WHOLE = "whole window"


def measure(paths: RunPaths, arm: Arm) -> dict[str, Any]:
    found = before_and_after(paths, arm)
    return {**found, "tokens": tokens_of_solved(on_dev(paths)[-1])} if arm.name == WHOLE else found


def tokens_of_solved(folder: Path) -> dict[str, float]:
    """For each task, the median tokens of its solved rollouts in an evaluation, including the prompt."""
    solved = {s.trace for s in read_samples(folder / "results.jsonl") if s.valid and s.passed and not s.greedy}
    tokens: defaultdict[str, list[int]] = defaultdict(list)
    for trace in read_traces(folder / "traces", only=solved):
        tokens[trace.task].append(max(len(segment.tokens) for segment in trace.segments))
    return {task: median(counts) for task, counts in sorted(tokens.items())}


def _split(rows: Rows) -> dict[bool, list[tuple[Outcomes, Outcomes]]]:
    """Pairs (off, on) after RL, one per seed: for tasks that need summaries (True) and for the others (False)."""
    off, on = rows.of("off"), rows.of("on")
    split: dict[bool, list[tuple[Outcomes, Outcomes]]] = {True: [], False: []}
    for seed, whole in rows.of(WHOLE).items():
        if seed in off and seed in on:
            window = rows.row("on", seed).recipe["engine"]["context"]
            for needed, pairs in split.items():
                tasks = [name for name, tokens in whole["tokens"].items() if (tokens > window) is needed]
                pairs.append((only(off[seed]["after"], tasks), only(on[seed]["after"], tasks)))
    return split


def conclude(rows: Rows) -> dict[str, Any]:
    split = _split(rows)
    found: dict[str, Any] = {}
    for name, pairs in (("needed", split[True]), ("others", split[False])):
        found |= {
            f"tasks_{name}": sum(len(on) for _, on in pairs),
            f"pass1_off_{name}": number(mean([off for off, _ in pairs], pass1)),
            f"pass1_on_{name}": number(mean([on for _, on in pairs], pass1)),
            **gains(f"gain_{name}", pairs, pass1),
        }
    return found


def draw(rows: Rows) -> Figure:
    from _plots import bars, panels, title

    figure, axes = panels(1)
    split = _split(rows)
    groups = {"need summaries": split[True], "do not": split[False]}
    bars(
        axes[0],
        {
            name: {"off": mean([off for off, _ in pairs], pass1), "on": mean([on for _, on in pairs], pass1)}
            for name, pairs in groups.items()
        },
    )
    title(axes[0], "dev pass@1 at a small window")
    return figure


CLAIM = Claim(
    name="summaries",
    says="Self-summaries solve more of the tasks that outgrow the window",
    arms=(Arm("on", "summaries-on.toml"), Arm("off", "summaries-off.toml"), Arm(WHOLE, "length-concave.toml")),
    until="rl",
    measure=measure,
    conclude=conclude,
    decided=(above("gain_needed"),),
    headline=(
        points("gain_needed", "pass@1 of the tasks that need them {} points"),
        Told("tasks_needed", "{} such tasks of all seeds", ".0f"),
        points("gain_others", "of the others {} points"),
    ),
    draw=draw,
)

if __name__ == "__main__":
    main(CLAIM)
