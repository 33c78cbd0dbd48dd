"""Every attack on the sandbox and the grader, in every mode that this host can have. Prints a table, modes by classes.

No attack may succeed and none may be left undecided; otherwise the exit code is 1. A cell says how often attacks of the
class were tried and succeeded, or what the mode does not promise. RACES=1000 tries each race so often (20 otherwise);
MODES and ATTACKS choose some of each by name; CHEATS=0 leaves out the grader's classes. With FOLDER=..., each part of a
mode that came to its end is kept there, and the same command goes on after an interruption.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

from _attack_cheats import CLASSES as GRADERS
from _attack_modes import MODES, NotHere, measured, parts
from _report import finish

from etude.sandbox.attacks import ATTACKS, CLASSES, Cell, Outcome, cells, table


def _chosen(variable: str, known: list[str]) -> list[str]:
    names = os.environ.get(variable, "").replace(",", " ").split()
    if unknown := set(names) - set(known):
        sys.exit(f"{variable} names {', '.join(sorted(unknown))}; there are: {' '.join(known)}")
    return names


def main() -> int:
    races, seconds = int(os.environ.get("RACES") or 20), 0.0
    attacks, cheats = _chosen("ATTACKS", list(ATTACKS)), os.environ.get("CHEATS", "1") != "0"
    found: dict[str, list[Outcome]] = {}
    missing: dict[str, str] = {}
    kept = os.environ.get("FOLDER")
    with nullcontext(kept) if kept else tempfile.TemporaryDirectory(prefix="etude-attacks-") as folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for mode in _chosen("MODES", list(MODES)) or list(MODES):
            for part in parts(attacks or list(ATTACKS), races, cheats=cheats):
                print(f"{mode}: {part.name}", file=sys.stderr, flush=True)
                try:
                    outcomes, taken = measured(mode, part, Path(folder))
                except NotHere as reason:
                    if mode not in found:
                        missing[mode] = str(reason)
                        break
                    outcomes, taken = part.undecided(str(reason)), 0.0
                found.setdefault(mode, []).extend(outcomes)
                seconds += taken
    for line in dict.fromkeys(line for mode, outcomes in found.items() for line in _told(mode, outcomes)):
        print(line)
    drawn = {mode: cells(outcomes) for mode, outcomes in found.items()}
    classes = [*CLASSES, *(GRADERS if cheats else ())]
    if attacks:
        classes = [each for each in classes if any(each.name in found for found in drawn.values())]
    print(table(drawn, classes))
    for mode, reason in missing.items():
        print(f"left out: {mode}: {reason}")
    result = summary(drawn, races)
    finish("attacks", {**result, "seconds": seconds})
    return 0 if result["attempts"] and not result["succeeded"] and not result["undecided"] else 1


def _told(mode: str, outcomes: list[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        yield from (f"{mode}: {outcome.of}: {outcome.attack}: {breach}" for breach in outcome.breaches)
        if outcome.undecided:
            yield f"{mode}: {outcome.attack} could not be tried: {outcome.undecided}"


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
