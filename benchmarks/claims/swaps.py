"""Swapping weights in flight compared with waiting: seconds of RL until training rollouts reach the same reward.

For each seed the goal is the final average reward of the arm with the lower one, and both arms' times to reach it are
compared. If a curve is flat, its noise decides when it reaches the goal. So the ratio is also reported as a mean over
reward levels on the way there, and for the time of all steps. In the waiting arm sampling pauses while training runs,
and each has every core in its turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from _arms import Arm
from _claim import Claim, main
from _figures import Told, of_seeds, stated
from _rows import Rows
from _verdict import above

from etude.journal import RunPaths, read_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WINDOW = 5
"""Steps of the running average, since one step's tasks may all be easy."""
LEVELS = 10
"""Number of reward levels on the way to the goal."""


def measure(paths: RunPaths, arm: Arm) -> dict[str, Any]:
    rows = read_metrics(paths.metrics("rl"))
    return {
        "seconds": [round(row["elapsed"], 2) for row in rows],
        "reward": [round(row["reward"], 5) for row in rows],
        "staleness": sum(row["staleness"] for row in rows) / max(1, len(rows)),
    }


def averages(figures: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Points (seconds, mean reward of the last WINDOW steps), from the first full window on."""
    seconds, reward = figures["seconds"], figures["reward"]
    window = min(WINDOW, len(reward))
    return [(seconds[end - 1], sum(reward[end - window : end]) / window) for end in range(window, len(reward) + 1)]


def seconds_to(goal: float, points: Sequence[tuple[float, float]]) -> float | None:
    return next((seconds for seconds, reward in points if reward >= goal), None)


def ratio_on_the_way(
    goal: float, flying: Sequence[tuple[float, float]], waiting: Sequence[tuple[float, float]]
) -> float:
    """Mean ratio of the waiting arm's time to the other's, over reward levels on the way to a goal that both reach."""
    begun = max(flying[0][1], waiting[0][1])
    levels = [begun + (goal - begun) * step / LEVELS for step in range(1, LEVELS + 1)]
    times = [(seconds_to(level, flying), seconds_to(level, waiting)) for level in levels]
    return fmean(slow / quick for quick, slow in times if quick and slow)


def conclude(rows: Rows) -> dict[str, Any]:
    times, goals, on_the_way, whole = [], [], [], []
    for flying, waiting in rows.pairs("in flight", "waiting"):
        curves = averages(flying), averages(waiting)
        whole.append(waiting["seconds"][-1] / flying["seconds"][-1])
        goal = min(curve[-1][1] for curve in curves)
        reached = [seconds_to(goal, curve) for curve in curves]
        if None not in reached:
            goals.append(goal)
            times.append(reached)
            on_the_way.append(ratio_on_the_way(goal, *curves))
    return {
        "reward": [round(goal, 4) for goal in goals],
        "seconds_in_flight": [round(flying, 1) for flying, _ in times],
        "seconds_waiting": [round(waiting, 1) for _, waiting in times],
        "staleness_in_flight": [round(figures["staleness"], 3) for figures in rows.of("in flight").values()],
        **stated("ratio", of_seeds([waiting / flying for flying, waiting in times])),
        **stated("ratio_on_the_way", of_seeds(on_the_way)),
        **stated("ratio_of_all_steps", of_seeds(whole)),
    }


def draw(rows: Rows) -> Figure:
    from _plots import panels, seeds, title

    figure, axes = panels(1)
    seeds(axes[0], {arm: {s: averages(f) for s, f in rows.of(arm).items()} for arm in ("waiting", "in flight")})
    title(axes[0], f"reward, mean of {WINDOW} steps", "seconds of RL")
    return figure


CLAIM = Claim(
    name="swaps",
    says="Swapping weights in flight reaches the same reward sooner than waiting",
    arms=(Arm("in flight", "swaps-in-flight.toml"), Arm("waiting", "swaps-waiting.toml")),
    until="rl",
    measure=measure,
    conclude=conclude,
    decided=(above("ratio", 1.0),),
    headline=(
        Told("ratio", "waiting takes {} times as long to the same reward"),
        Told("ratio_on_the_way", "on the way there {} times, on average"),
        Told("ratio_of_all_steps", "for as many steps {} times"),
    ),
    draw=draw,
)

if __name__ == "__main__":
    main(CLAIM)
