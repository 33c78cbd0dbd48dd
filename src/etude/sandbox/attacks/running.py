"""Runs attacks on a backend, and draws one table of modes and classes in which no cell is empty."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from etude.sandbox.attacks.attack import Attack, Scene
from etude.sandbox.attacks.classes import WITHOUT, AttackClass, Need, lacking
from etude.sandbox.contract import Sandboxes, SandboxLost

_LEGEND = "tries: successes; ?n: attacks that could not be tried; *: some were not, for what the mode lacks"
FILES = {"calc.py": b"def add(a, b):\n    return a + b\n"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one attack in one mode."""

    attack: str
    of: str
    """Name of the AttackClass that the attack belongs to."""
    tried: int = 0
    breaches: tuple[str, ...] = ()
    """What each successful try achieved."""
    lacks: tuple[str, ...] = ()
    """Sandbox features that the attack needs and this mode lacks. If there are any, the attack is not tried."""
    undecided: str = ""
    """The error that ended the attack before it had a result; empty if the attack went through, or lacks a feature."""


@dataclass(slots=True)
class Cell:
    """A cell of the table of results: the attacks of one class, summed up for one sandbox mode."""

    tried: int = 0
    succeeded: int = 0
    undecided: int = 0
    lacks: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        if not self.tried and not self.undecided:
            return "no " + self.lacks[0] if self.lacks else "not tried"
        marks = (f" ?{self.undecided}" if self.undecided else "") + (" *" if self.lacks else "")
        return f"{self.tried}: {self.succeeded}{marks}"


async def run_attacks(
    sandboxes: Sandboxes,
    attacks: Iterable[Attack],
    *,
    races: int = 20,
    progress: Callable[[Outcome], None] = lambda _: None,
) -> list[Outcome]:
    """Try attacks one after the other. An attack is not tried if it needs a feature that the backend lacks."""
    image, found = await sandboxes.add_image(FILES), []
    for attack in attacks:
        found.append(await try_attack(attack, sandboxes, image, races=races))
        progress(found[-1])
    return found


async def try_attack(attack: Attack, sandboxes: Sandboxes, image: str, *, races: int = 20) -> Outcome:
    has: frozenset[Need] = sandboxes.features | sandboxes.capabilities
    if lacks := lacking(attack.needs, has):
        return Outcome(attack.name, attack.of.name, lacks=tuple(need.value for need in lacks))
    with tempfile.TemporaryDirectory(prefix="etude-attack-") as folder:
        place = Path(folder) / "host"
        place.mkdir()
        scene, undecided = Scene(sandboxes, image, place, races), ""
        try:
            await attack.act(scene)
        except SandboxLost as error:
            scene.breach(f"a box was lost: {error}")
        except Exception as error:  # noqa: BLE001  # An attack that fails proves nothing, and must not end the others.
            undecided = f"{type(error).__name__}: {error}"[:500]
        finally:
            await asyncio.gather(*(box.destroy() for box in scene.boxes), return_exceptions=True)
    return Outcome(attack.name, attack.of.name, scene.made, tuple(scene.breaches), undecided=undecided)


def cells(outcomes: Iterable[Outcome]) -> dict[str, Cell]:
    """Sum up the outcomes of attacks in one sandbox mode, by the name of the attack's class."""
    found: dict[str, Cell] = {}
    for outcome in outcomes:
        cell = found.setdefault(outcome.of, Cell())
        cell.tried += outcome.tried
        cell.succeeded += len(outcome.breaches)
        cell.undecided += bool(outcome.undecided)
        cell.lacks += [lack for lack in outcome.lacks if lack not in cell.lacks]
    return found


def table(modes: Mapping[str, Mapping[str, Cell]], classes: Sequence[AttackClass]) -> str:
    """Draw the table of results: a row per attack class and a column per sandbox mode. Lines below the table explain
    the features that some mode lacks."""
    names = list(modes)
    rows = [["", *names]]
    rows += [[each.name, *(str(modes[mode].get(each.name, Cell())) for mode in names)] for each in classes]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    used = {lack for found in modes.values() for cell in found.values() for lack in cell.lacks}
    meanings = [f"  no {need.value}: {text}" for need, text in WITHOUT.items() if need.value in used]
    told = ["", _LEGEND, *meanings]
    return "\n".join([*lines, *told])
