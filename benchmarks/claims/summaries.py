"""Self-summaries, on and off at the same small window: pass@1 of the dev tasks that need them.

A task needs them if before RL at least half of its rollouts fill the window in the arm without: the same tasks for both
arms. To be chosen by what went wrong in one arm flatters that arm afterwards, so what is found is rather too little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from _arms import Arm
from _claim import Claim, main
from _figures import number, points, stated
from _outcomes import Outcomes, before_and_after, gain, mean, only, pass1
from _rows import Rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _split(rows: Rows) -> dict[bool, list[tuple[Outcomes, Outcomes]]]:
    """(off, on) after RL, of the tasks that need summaries (True) and of the others; one pair per seed."""
    split: dict[bool, list[tuple[Outcomes, Outcomes]]] = {True: [], False: []}
    for off, on in rows.pairs("off", "on"):
        for needed, pairs in split.items():
            tasks = [name for name, task in off["before"].items() if (task["full"] >= 0.5) is needed]
            pairs.append((only(off["after"], tasks), only(on["after"], tasks)))
    return split


def conclude(rows: Rows) -> dict[str, Any]:
    split = _split(rows)
    found: dict[str, Any] = {}
    for name, pairs in (("needed", split[True]), ("others", split[False])):
        found |= {
            f"tasks_{name}": sum(len(on) for _, on in pairs),
            f"pass1_off_{name}": number(mean([off for off, _ in pairs], pass1)),
            f"pass1_on_{name}": number(mean([on for _, on in pairs], pass1)),
            **stated(f"gain_{name}", gain(pairs, pass1)),
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
    arms=(Arm("on", "summaries-on.toml"), Arm("off", "summaries-off.toml")),
    until="rl",
    measure=before_and_after,
    conclude=conclude,
    headline=(
        points("gain_needed", "pass@1 of the tasks that need them {} points"),
        points("gain_others", "of the others {} points"),
    ),
    draw=draw,
)

if __name__ == "__main__":
    main(CLAIM)
