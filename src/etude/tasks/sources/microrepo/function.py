"""Draws a function from a family, by filling in names and constants, and inputs near its constants, where bugs change
the result."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from types import CodeType

from etude.tasks.cases import Outcome, Value, outcome_of
from etude.tasks.sources.microrepo import name_words
from etude.tasks.sources.microrepo.families import Family

NUMBERS = frozenset(("x", "y", "n", "lo", "hi", "v", "i", "t"))


@dataclass(frozen=True, slots=True)
class Function:
    family: Family
    name: str
    source: str
    """Source text, without a final newline."""
    constants: tuple[int, ...]
    groups: dict[str, str]
    """Type of each variable in the source, such as "number", by the variable's name. A bug may replace a variable by
    another of the same type."""

    @property
    def text(self) -> str:
        return f"{self.source}\n"


def draw_function(family: Family, rng: random.Random, taken: Collection[str] = ()) -> Function:
    """Return a function of the family whose name is not in `taken`."""
    nouns = rng.sample(name_words.NOUNS, 4)
    low, high = rng.choice(name_words.BOUNDS)
    flags = rng.sample(name_words.FLAGS, 2)
    small = rng.sample(range(2, 10), 2)
    c = rng.randint(4, 20)
    grades = rng.choice(name_words.GRADES)
    slots: dict[str, str] = {
        "x": nouns[0], "y": nouns[1], "n": nouns[2],
        "xs": rng.choice(name_words.LISTS), "v": rng.choice(name_words.ITEMS),
        "ws": rng.choice(name_words.TEXTS), "w": rng.choice(name_words.TEXT_ITEMS),
        "t": rng.choice(name_words.TOTALS), "i": rng.choice(name_words.INDEXES),
        "lo": low, "hi": high, "p": flags[0], "q": flags[1],
        "g0": grades[0], "g1": grades[1], "g2": grades[2],
    }  # fmt: skip
    constants = {"j": rng.randint(2, 4), "k": small[0], "m": small[1], "c": c, "b": c + rng.randint(3, 30)}
    name = ""
    while not name or name in taken:
        verb = rng.choice(family.verbs)
        noun = slots["x"] if "x" in family.inputs and rng.random() < 0.5 else rng.choice(name_words.NOUNS)
        name = f"{verb}_{noun}" if noun != verb else ""
    filled = slots | {slot: str(value) for slot, value in constants.items()}
    parameters = ", ".join(slots[slot] for slot in family.inputs)
    body = family.body.format(**filled)
    textual = "{t} = ''" in family.body
    used = {slot: slots[slot] for slot in slots if "{" + slot + "}" in family.body or slot in family.inputs}
    return Function(
        family=family,
        name=name,
        source=f"def {name}({parameters}):\n{body}",
        constants=tuple(value for slot, value in constants.items() if "{" + slot + "}" in family.body),
        groups={word: _group(slot, textual) for slot, word in used.items() if not slot.startswith("g")},
    )


def _group(slot: str, textual: bool) -> str:
    if slot == "w" or (slot == "t" and textual):
        return "text"
    return "number" if slot in NUMBERS else slot[0]


def draw_inputs(function: Function, rng: random.Random, count: int) -> list[tuple[Value, ...]]:
    """Return at most `count` distinct inputs, many of them at the function's boundaries."""
    seen: dict[str, tuple[Value, ...]] = {}
    for _ in range(count * 3):
        values = _draw_arguments(function, rng)
        seen.setdefault(repr(values), values)
        if len(seen) == count:
            break
    return list(seen.values())


def _draw_arguments(function: Function, rng: random.Random) -> tuple[Value, ...]:
    slots = function.family.inputs
    near = list(function.constants)
    drawn: dict[str, Value] = {}
    # Scalars first, because list items are drawn near them.
    for slot in sorted(slots, key=lambda slot: slot.endswith("s")):
        if slot == "hi":
            value: Value = near[-1] + rng.randint(1, 12)
        elif slot in ("p", "q"):
            value = rng.random() < 0.5
        elif slot == "n":
            value = rng.randint(0, 12)
        elif slot == "xs":
            value = [_number(rng, near) for _ in range(rng.choice((0, 1, 2, 2, 3, 3, 3, 4, 4)))]
        elif slot == "ws":
            value = [rng.choice(name_words.SAMPLES) for _ in range(rng.choice((0, 1, 2, 2, 3, 3)))]
        else:
            value = _number(rng, near)
        if type(value) is int:
            near.append(value)
        drawn[slot] = value
    return tuple(drawn[slot] for slot in slots)


def _number(rng: random.Random, near: list[int]) -> int:
    kind = rng.random()
    if near and kind < 0.5:
        return max(0, rng.choice(near) + rng.choice((-1, 0, 0, 1)))
    return rng.randint(0, 9) if kind < 0.8 else rng.randint(0, 40)


def compile_function(source: str, name: str) -> Callable[..., object]:
    """Return the function `name` that `source` defines. It runs in this process without a time limit, so the source
    must come from Étude's own templates, whose functions end on every input."""
    code: CodeType = compile(source, "<microrepo>", "exec")
    scope: dict[str, object] = {}
    exec(code, scope)
    function = scope[name]
    assert callable(function)
    return function


def outcomes(source: str, name: str, inputs: list[tuple[Value, ...]]) -> list[Outcome]:
    function = compile_function(source, name)
    # Lists need no copies, because no family changes its arguments.
    return [outcome_of(function, arguments) for arguments in inputs]
