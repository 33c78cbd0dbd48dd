"""Families composed from parts: an optional guard that returns early, a core computation, and an end that finishes the
result.

Given only a few hand-written templates, a small model learns their names instead of their meaning, and cannot repair
functions of any other family. Composition gives hundreds of families. A held-out family is then a new combination of
parts, each of which occurs in other families too. The parts use the placeholders (slots) of families.py; `{t}` is the
variable with the value computed so far.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a composed function's body: a guard, which may return early, a `Core`, which computes a value, or an
    end, which returns the result."""

    name: str
    split_group: str
    """Name of a group of parts. Parts that a single bug can turn into each other share it, so that the families made
    from them are in the same split."""
    lines: tuple[str, ...]
    """Lines of code and comments. Each comment describes what the code lines under it should do."""


@dataclass(frozen=True, slots=True)
class Core(Part):
    """The part that does the main computation."""

    inputs: str = ""
    """Placeholders (such as "x y") that stand for the function's parameters, separated by blanks."""
    verbs: str = ""
    """First words of the function's name, separated by blanks."""


def _loop(intent: str, condition: str, then: str) -> tuple[str, ...]:
    return (f"# {intent}", "{t} = 0", "for {v} in {xs}:", f"    if {condition}:", f"        {{t}} += {then}")


CORES = (
    Core("plus", "sum", ("# {x} plus {y}", "{t} = {x} + {y}"), "x y", "add join"),
    Core("minus", "sum", ("# {x} minus {y}", "{t} = {x} - {y}"), "x y", "left spare"),
    Core("times", "sum", ("# {x} times {y}", "{t} = {x} * {y}"), "x y", "bill charge"),
    Core("weighted", "weighted", ("# {x} times {k} plus {y}", "{t} = {x} * {k} + {y}"), "x y", "scale convert"),
    Core("less", "less", ("# {x} minus {y} times {k}", "{t} = {x} - {y} * {k}"), "x y", "cut lower"),
    Core("larger", "pair", ("# larger of {x} and {y}", "{t} = max({x}, {y})"), "x y", "best top"),
    Core("smaller", "pair", ("# smaller of {x} and {y}", "{t} = min({x}, {y})"), "x y", "limit bound"),
    Core("both", "less", ("# {x} plus {y} plus {k}", "{t} = {x} + {y} + {k}"), "x y", "add charge"),
    Core("per", "per", ("# {x} divided by {k}", "{t} = {x} // {k}"), "x", "share split"),
    Core("rest", "per", ("# rest of {x} divided by {k}", "{t} = {x} % {k}"), "x", "left turn"),
    Core("all", "all", ("# sum of the {xs}", "{t} = sum({xs})"), "xs", "sum add"),
    Core("above", "part", _loop("sum of the {xs} above {y}", "{v} > {y}", "{v}"), "xs y", "sum raise"),
    Core("below", "part", _loop("sum of the {xs} below {y}", "{v} < {y}", "{v}"), "xs y", "sum trim"),
    Core("dividing", "dividing", _loop("sum of the {xs} that {k} divides", "{v} % {k} == 0", "{v}"), "xs", "sum pick"),
    Core("unlike", "unlike", _loop("sum of the {xs} that are not {y}", "{v} != {y}", "{v}"), "xs y", "sum drop"),
    Core("beyond", "beyond", _loop("sum of what the {xs} have above {y}", "{v} > {y}", "{v} - {y}"), "xs y", "sum top"),
    Core(
        "each",
        "each",
        ("# sum of the {xs}, each times {k}", "{t} = 0", "for {v} in {xs}:", "    {t} += {v} * {k}"),
        "xs",
        "scale bill",
    ),
    Core("many", "many", _loop("count of the {xs} above {y}", "{v} > {y}", "1"), "xs y", "count number"),
)
ENDS = (
    Part("cap", "bound", ("# {t}, at most {b}", "return min({t}, {b})")),
    Part("floor", "bound", ("# {t}, at least {c}", "return max({t}, {c})")),
    Part("more", "more", ("# {t} plus {m}", "return {t} + {m}")),
    Part("extra", "step", ("# plus {m} if {t} is above {b}", "if {t} > {b}:", "    {t} += {m}", "return {t}")),
    Part("rebate", "step", ("# minus {m} if {t} is at least {b}", "if {t} >= {b}:", "    {t} -= {m}", "return {t}")),
    Part("raise", "step", ("# plus {m} if {t} is below {c}", "if {t} < {c}:", "    {t} += {m}", "return {t}")),
    Part("over", "over", ("# true if {t} is above {c}", "return {t} > {c}")),
    Part("within", "within", ("# true if {t} is at least {c} and at most {b}", "return {t} >= {c} and {t} <= {b}")),
)
GUARDS = (
    Part("", "", ()),
    Part("none", "none", ("# {j} if {y} is 0", "if {y} == 0:", "    return {j}")),
    Part("low", "edge", ("# {j} if {x} is below {c}", "if {x} < {c}:", "    return {j}")),
    Part("high", "edge", ("# {j} if {x} is above {b}", "if {x} > {b}:", "    return {j}")),
    Part("bare", "bare", ("# {j} if there are no {xs}", "if not {xs}:", "    return {j}")),
)


@dataclass(frozen=True, slots=True)
class Combination:
    guard: Part
    core: Core
    end: Part

    @property
    def name(self) -> str:
        return "_".join(part.name for part in (self.guard, self.core, self.end) if part.name)

    @property
    def split_group(self) -> str:
        return "_".join(part.split_group for part in (self.guard, self.core, self.end) if part.name)

    @property
    def lines(self) -> tuple[str, ...]:
        return (*self.guard.lines, *self.core.lines, *self.end.lines)


def combinations() -> list[Combination]:
    return [Combination(*parts) for parts in product(GUARDS, CORES, ENDS) if _sensible(*parts)]


def _sensible(guard: Part, core: Core, end: Part) -> bool:
    """Return whether three parts fit together. Every line must be able to affect the result. With a guard, the function
    must not return both booleans and numbers, and must not be too long."""
    if core.name == "many" and end.name != "more":  # a count is seldom near the bounds of an end
        return False
    if not guard.name:
        return True
    speaks_of_input = any("{" + slot + "}" in guard.lines[1] for slot in core.inputs.split())
    truth = end.name in ("over", "within")  # a function returns either booleans or numbers
    # The guard already decides the end's condition: it would always or never hold.
    moot = end.name in {"low": ("floor", "raise"), "high": ("cap", "extra", "rebate")}.get(guard.name, ())
    long = len(core.lines) > 2 and len(end.lines) > 2
    return speaks_of_input and not (truth or moot or long)
