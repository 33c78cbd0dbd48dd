"""Every attack on the sandbox and the grader, in every mode that this host can have. Prints a table, modes by classes.

No attack may succeed and none may be left undecided; otherwise the exit code is 1. A cell says how often attacks of the
class were tried and succeeded, or what the mode does not promise. RACES=1000 tries each race so often (20 otherwise);
MODES and ATTACKS choose some of each by name; CHEATS=0 leaves out the grader's classes.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

from _attack_modes import MODES, NotHere, outcomes_of
from _report import finish

from etude.journal import ProgressLine
from etude.sandbox.attacks import ATTACKS, CLASSES, Cell, Outcome, cells, table


def _chosen(variable: str, known: list[str]) -> list[str]:
    names = os.environ.get(variable, "").replace(",", " ").split()
    if unknown := set(names) - set(known):
        sys.exit(f"{variable} names {', '.join(sorted(unknown))}; there are: {' '.join(known)}")
    return names


def main() -> int:
    from _attack_cheats import CLASSES as GRADERS

    races, begun = int(os.environ.get("RACES") or 20), time.perf_counter()
    attacks, cheats = _chosen("ATTACKS", list(ATTACKS)), os.environ.get("CHEATS", "1") != "0"
    found: dict[str, list[Outcome]] = {}
    missing: dict[str, str] = {}
    modes = _chosen("MODES", list(MODES)) or list(MODES)
    with ProgressLine("attacks", len(modes), unit="modes") as line:
        for number, mode in enumerate(modes):
            try:
                found[mode] = outcomes_of(mode, races, attacks, cheats=cheats)
            except NotHere as reason:
                missing[mode] = str(reason)
            line.update(number + 1, note=mode)
    for mode, outcomes in found.items():
        for outcome in outcomes:
            for breach in outcome.breaches:
                print(f"{mode}: {outcome.of}: {outcome.attack}: {breach}")
            if outcome.undecided:
                print(f"{mode}: {outcome.of}: {outcome.attack} could not be tried: {outcome.undecided}")
    drawn = {mode: cells(outcomes) for mode, outcomes in found.items()}
    classes = [*CLASSES, *(GRADERS if cheats else ())]
    if attacks:
        classes = [each for each in classes if any(each.name in found for found in drawn.values())]
    print(table(drawn, classes))
    for mode, reason in missing.items():
        print(f"left out: {mode}: {reason}")
    result = summary(drawn, races)
    finish("attacks", {**result, "seconds": time.perf_counter() - begun})
    return 0 if result["attempts"] and not result["succeeded"] and not result["undecided"] else 1


def summary(drawn: dict[str, dict[str, Cell]], races: int) -> dict[str, object]:
    every = [cell for found in drawn.values() for cell in found.values()]
    return {
        "modes": len(drawn),
        "classes": len({name for found in drawn.values() for name in found}),
        "attempts": sum(cell.tried for cell in every),
        "succeeded": sum(cell.succeeded for cell in every),
        "undecided": sum(cell.undecided for cell in every),
        "races_tries": races,
        "table": {mode: {name: str(cell) for name, cell in found.items()} for mode, found in drawn.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
