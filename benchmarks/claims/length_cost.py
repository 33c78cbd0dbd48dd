"""The concave length cost compared with none and with a linear one: turns on easy and on hard dev tasks.

Turns are those of solved rollouts, compared task by task where both arms solve the task; pass@1 is reported beside
them.

A task is easy if, before RL, it was solved at least as often as the median task. All arms start from the same SFT, so
the concave arm's first evaluation splits the tasks for all arms.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from _arms import Arm
from _claim import Claim, main
from _figures import Told, number, points, stated
from _outcomes import Outcomes, before_and_after, gain, mean, only, pass1, turns
from _rows import Rows
from _verdict import above, below, not_below

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ARMS = ("none", "linear", "concave")


def _after(rows: Rows, arm: str, easy: bool) -> list[Outcomes]:
    """The arm's last evaluation on the easy or hard tasks, one per seed that this arm and the concave one have."""
    found = []
    for concave, other in rows.pairs("concave", arm):
        before = {name: pass1(task) or 0.0 for name, task in concave["before"].items()}
        middle = median(before.values())
        found.append(only(other["after"], [name for name, share in before.items() if (share >= middle) is easy]))
    return found


def conclude(rows: Rows) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for easy, kind in ((True, "easy"), (False, "hard")):
        for arm in ARMS:
            found[f"turns_{arm}_{kind}"] = number(mean(_after(rows, arm, easy), turns))
            found[f"pass1_{arm}_{kind}"] = number(mean(_after(rows, arm, easy), pass1))
        for arm in ("none", "linear"):
            pairs = list(zip(_after(rows, arm, easy), _concave_beside(rows, arm, easy), strict=True))
            for name, score in (("turns", turns), ("pass1", pass1)):
                found |= stated(f"{name}_concave_minus_{arm}_{kind}", gain(pairs, score))
    return found


def _concave_beside(rows: Rows, arm: str, easy: bool) -> list[Outcomes]:
    """The concave arm's last evaluations, for the seeds that `arm` has as well."""
    by_seed = zip(rows.of("concave"), _after(rows, "concave", easy), strict=True)
    return [found for seed, found in by_seed if seed in rows.of(arm)]


def draw(rows: Rows) -> Figure:
    from _plots import bars, panels, title

    figure, axes = panels(2)
    for axis, score, name in ((axes[0], turns, "turns of solved rollouts"), (axes[1], pass1, "dev pass@1")):
        bars(
            axis,
            {
                kind: {arm: mean(_after(rows, arm, easy), score) for arm in ARMS}
                for easy, kind in ((True, "easy"), (False, "hard"))
            },
        )
        title(axis, name)
    return figure


def _beside(arm: str, text: str) -> tuple[Told, ...]:
    return (
        Told(f"turns_concave_minus_{arm}_easy", f"against {text} {{}} turns per solved easy task", "+.2f"),
        points(f"pass1_concave_minus_{arm}_easy", "pass@1 {} points"),
        Told(f"turns_concave_minus_{arm}_hard", "per solved hard task {} turns", "+.2f"),
        points(f"pass1_concave_minus_{arm}_hard", "pass@1 {} points"),
    )


CLAIM = Claim(
    name="length_cost",
    says="A concave length cost saves turns on easy tasks, grants hard ones more than a linear cost does, and success "
    "falls in none of that",
    arms=(Arm("concave", "length-concave.toml"), Arm("none", "length-none.toml"), Arm("linear", "length-linear.toml")),
    until="rl",
    measure=before_and_after,
    conclude=conclude,
    decided=(
        below("turns_concave_minus_none_easy"),
        above("turns_concave_minus_linear_hard"),
        *(not_below(f"pass1_concave_minus_{arm}_{kind}") for arm in ("none", "linear") for kind in ("easy", "hard")),
    ),
    headline=(*_beside("none", "no cost"), *_beside("linear", "a linear one")),
    draw=draw,
)

if __name__ == "__main__":
    main(CLAIM)
