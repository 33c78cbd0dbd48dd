"""Review tasks: the agent reviews a change to a package in which some edits are defects and most are harmless."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from etude.harness.editing.diff import unified_diff
from etude.tasks.categories.alterations import Alteration, altered, apart
from etude.tasks.categories.base import CategorySource, Draft
from etude.tasks.categories.examples import example_of
from etude.tasks.categories.packages import PYTHON, Damage, Package, kins, package_of
from etude.tasks.verifiers.contract import SEALED
from etude.tasks.verifiers.review import FILE, LIST, TEXT, chance_of_guess

DEFECTS = 5
CHANGE = "change.diff"
_FREE_LINES = 2
"""Minimum number of lines between two edits, so that a reported line identifies one of them."""
_MOST_PLACES = 18
_DRAWS = 40
_THRESHOLDS = (0.88, 0.9, 1.0)
"""Possible required scores (F1). There are five defects. With 0.88, a review passes despite one missed defect or one
false alarm; with 0.9, despite one false alarm; with 1.0, only without errors."""
_INSTRUCTION = f"""Review the change in {CHANGE}: the workspace has {{name}} as it is with the change in it. Most of \
the change only writes things in another way; some places change what the package does, against its docstrings. Write \
{TEXT} with a line `path:line: what is wrong` for each such place, the line counted in the file as it is now, that \
ends with an example in backticks: one expression on {{name}}'s public names, such as `{{name}}.f(3)`, whose value or \
exception that place alone makes another: each example unlike the others, and on the function that the place is in or \
one that leads there. Missed \
defects and false alarms both cost: the harmonic mean of precision and recall must be {{threshold}}. Change nothing \
else."""


class ReviewSource(CategorySource):
    name = "review"
    version = 3
    category = "review"

    def kins(self) -> Sequence[str]:
        return kins(*PYTHON)

    def draft(self, kin: str, rng: random.Random) -> Draft:
        package = package_of(kin)
        planted = plant(package, rng)
        head = altered(package.files, planted.alterations)
        before = {**head, CHANGE: unified_diff(package.files, head).encode()}
        threshold = _threshold(len(planted.alterations))
        places = [(damage, planted.lines[damage.alteration]) for damage in planted.damages]
        defects = [
            {
                "path": damage.alteration.path,
                "first": line,
                "last": line,
                "tests": list(damage.tests),
                "files": _code(altered(package.files, [damage.alteration])),
            }
            for damage, line in places
        ]
        text = "".join(f"{_finding(package, damage, line)}\n" for damage, line in places)
        rows = [_row(package, damage, line + rng.choice((-1, 0, 1))) for damage, line in reversed(places)]
        listed = {"places": len(planted.alterations), "defects": defects, "sound": _code(package.files)}
        return Draft(
            instruction=_INSTRUCTION.format(name=package.name, threshold=threshold),
            kind=f"defects{DEFECTS}",
            verifier={"type": "review", "threshold": threshold, "slack": 1, "examples": True},
            before=before,
            solved={**before, TEXT: text.encode()},
            other={**before, LIST: json.dumps(rows, indent=1).encode()},
            hidden={FILE: json.dumps(listed, indent=1).encode()},
        )


@dataclass(frozen=True, slots=True)
class Planted:
    damages: list[Damage]
    alterations: list[Alteration]
    """All edits planted in the package, defects and harmless ones, sorted by file and position."""
    lines: Mapping[Alteration, int]
    """For each planted edit, the number of its first line in the file with all edits made."""


def plant(package: Package, rng: random.Random) -> Planted:
    """Plant defects and harmless edits in a package. Of several random draws, return the one with the most edits."""
    examples = {damage.alteration: example_of(package, damage) for damage in package.damages}
    shown = {damage.alteration: damage for damage in package.damages if examples[damage.alteration]}
    best = max((_draw(package, shown, examples, rng) for _ in range(_DRAWS)), key=lambda drawn: len(drawn[1]))
    damages, places = best
    lines = {}
    for one in places:
        before = [other for other in places if other.path == one.path and other.start < one.start]
        lines[one] = one.first + sum(other.text.count("\n") for other in before)
    return Planted(sorted(damages, key=lambda damage: damage.alteration), places, lines)


def _threshold(places: int) -> float:
    """Return the lowest threshold (required score) at which the verdict is safe against guessing: random findings reach
    it with a probability of at most `SEALED`. If there is none, return the highest threshold. `places` is the number of
    edits in the change to review."""
    fair = (one for one in _THRESHOLDS if chance_of_guess(places, DEFECTS, one) <= SEALED)
    return next(fair, _THRESHOLDS[-1])


def _draw(
    package: Package, of: Mapping[Alteration, Damage], examples: Mapping[Alteration, str], rng: random.Random
) -> tuple[list[Damage], list[Alteration]]:
    # Damages that no test notices are not used as harmless edits, because they may still be defects.
    unlike = {examples[one]: one for one in rng.sample(list(of), len(of))}
    chosen = apart(list(unlike.values()), _FREE_LINES)[:DEFECTS]
    filled = apart([*chosen, *rng.sample(package.harmless, len(package.harmless))], _FREE_LINES)[:_MOST_PLACES]
    return [of[one] for one in chosen], sorted(filled)


def _finding(package: Package, damage: Damage, line: int) -> str:
    one = damage.alteration
    was = package.files[one.path].splitlines()[one.first - 1].decode().strip()
    return f"{one.path}:{line}: this was `{was}`, and must be: {_subject(damage)}, `{example_of(package, damage)}`"


def _row(package: Package, damage: Damage, line: int) -> dict[str, object]:
    text = f"breaks the case of {_subject(damage)}"
    return {"path": damage.alteration.path, "line": line, "text": text, "example": example_of(package, damage)}


def _code(files: Mapping[str, bytes]) -> dict[str, str]:
    return {path: data.decode() for path, data in files.items() if path.endswith(".py")}


def _subject(damage: Damage) -> str:
    return damage.tests[0].rpartition(".test_")[2].replace("_", " ")
