"""The function families: each is a template of one small function with its inputs, and comments that say what it does.

Names (of the kin) alone decide the split, so none may ever change. Some families are written by hand; most are
composed from parts (composed.py). The comments name every choice that the lines under them make (constants, which side
of a comparison counts, which variable), so that each injected bug can be recognised from them.

Slots: x y numbers, n a small number, xs a list of numbers and v one of them, ws a list of words and w one of them, t a
local result, i an index, lo hi a pair of bounds, p q flags; constants: j (2-4), k m (2-9), c b (c < b); g0 g1 g2
words.
"""

from __future__ import annotations

from dataclasses import dataclass

from etude.tasks.sources.microrepo.composed import combinations
from etude.tasks.task import Split, split_of


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    verbs: tuple[str, ...]
    """Possible first halves of the function's name."""
    inputs: tuple[str, ...]
    """The slot of each parameter, in order. The slot decides the type of the values (see function.py)."""
    body: str
    """The code without the def line, indented once. Comments say what the lines under them should do."""
    kin: str
    """Decides the split. Families that a single bug can turn into each other have the same kin."""

    @property
    def split(self) -> Split:
        return split_of(self.kin)


def _family(name: str, verbs: str, inputs: str, *body: str, kin: str = "") -> Family:
    text = "\n".join("    " + line for line in body)
    return Family(name, tuple(verbs.split()), tuple(inputs.split()), text, kin or name)


_BY_HAND: tuple[Family, ...] = (
    _family(
        "clamp", "clamp limit bound", "x lo hi",
        "# {lo} if {x} is below {lo}", "if {x} < {lo}:", "    return {lo}",
        "# {hi} if {x} is above {hi}", "if {x} > {hi}:", "    return {hi}", "return {x}",
    ),
    _family(
        "cap_sum", "cap raise", "x",
        "# {x} plus {k}", "{t} = {x} + {k}", "# {t}, at most {b}", "return min({t}, {b})",
    ),
    _family(
        "discount", "cut lower", "x",
        "# {x} minus {k} if {x} is above {b}", "if {x} > {b}:", "    return {x} - {k}", "return {x}",
    ),
    _family(
        "bonus", "bonus reward", "x y",
        "# {x} plus {k} if {x} is above {c} and {y} is below {b}", "if {x} > {c} and {y} < {b}:",
        "    return {x} + {k}", "return {x}",
    ),
    _family(
        "between", "has is check", "x lo hi",
        "# true if {x} is at least {lo} and at most {hi}", "return {x} >= {lo} and {x} <= {hi}",
    ),
    _family(
        "outside", "alarm warn", "x lo hi",
        "# true if {x} is below {lo} or above {hi}", "if {x} < {lo} or {x} > {hi}:", "    return True",
        "# else false", "return False",
    ),
    _family(
        "sum_above", "sum add", "xs y",
        "# sum of the {xs} above {y}", "{t} = 0", "for {v} in {xs}:", "    if {v} > {y}:", "        {t} += {v}",
        "return {t}",
    ),
    _family(
        "count_between", "count number", "xs lo hi",
        "# count of the {xs} at least {lo} and at most {hi}", "{t} = 0", "for {v} in {xs}:",
        "    if {v} >= {lo} and {v} <= {hi}:", "        {t} += 1", "return {t}",
    ),
    _family(
        "largest", "best top", "xs y",
        "# 0 if there are no {xs}", "if not {xs}:", "    return 0",
        "# largest of the {xs} plus {y}", "return max({xs}) + {y}",
    ),
    _family(
        "scale", "scale convert", "x y",
        "# {x} times {k} plus {y} times {m}", "return {x} * {k} + {y} * {m}",
    ),
    _family(
        "boxes", "pack box", "x y",
        "# {x} plus {y}", "{t} = {x} + {y}",
        "# {t} plus {k} minus 1, divided by {k}", "return ({t} + {k} - 1) // {k}",
    ),
    _family(
        "gap", "gap range", "xs",
        "# 0 if there are fewer than 2 {xs}", "if len({xs}) < 2:", "    return 0",
        "# largest minus smallest of the {xs}", "return max({xs}) - min({xs})",
    ),
    _family(
        "grade", "grade rate", "x",
        "# {g2} if {x} is at least {b}", "if {x} >= {b}:", "    return '{g2}'",
        "# {g1} if {x} is at least {c}", "if {x} >= {c}:", "    return '{g1}'", "# else {g0}", "return '{g0}'",
    ),
    _family(
        "first_above", "find locate", "xs y",
        "# index of the first of the {xs} above {y}", "for {i} in range(len({xs})):", "    if {xs}[{i}] > {y}:",
        "        return {i}", "# else -1", "return -1",
    ),
    _family(
        "triangle", "stack build", "n",
        "# sum of the numbers from 1 to {n}", "{t} = 0", "for {i} in range(1, {n} + 1):", "    {t} += {i}",
        "return {t}",
    ),
    _family(
        "head_sum", "sum head", "xs n",
        "# sum of the first {n} of the {xs}", "{t} = 0", "for {i} in range(min({n}, len({xs}))):",
        "    {t} += {xs}[{i}]", "return {t}",
    ),
    _family(
        "multiples", "count split", "xs",
        "# count of the {xs} that {k} divides", "{t} = 0", "for {v} in {xs}:", "    if {v} % {k} == 0:",
        "        {t} += 1", "return {t}",
    ),
    _family(
        "long_words", "count measure", "ws",
        "# count of the {ws} longer than {j}", "{t} = 0", "for {w} in {ws}:", "    if len({w}) > {j}:",
        "        {t} += 1", "return {t}",
    ),
    _family(
        "longest", "pick choose", "ws",
        "# longest of the {ws}", "{t} = ''", "for {w} in {ws}:", "    if len({w}) > len({t}):", "        {t} = {w}",
        "return {t}",
    ),
    _family(
        "admit", "admit allow", "x p q",
        "# false if {q} or not {p}", "if {q} or not {p}:", "    return False",
        "# true if {x} is above {b}", "return {x} > {b}",
    ),
    _family(
        "pay", "pay earn", "x y",
        "# {x} times {y}", "{t} = {x} * {y}",
        "# plus {k} for each {x} above {b}", "if {x} > {b}:", "    {t} += ({x} - {b}) * {k}", "return {t}",
    ),
    _family(
        "ticket", "fare ticket", "x y",
        "# {x} minus {k} if {y} is below {c} or above {b}", "if {y} < {c} or {y} > {b}:", "    {x} -= {k}",
        "return {x}",
    ),
    _family(
        "apart", "apart compare", "x y",
        "# larger minus smaller of {x} and {y}", "{t} = max({x}, {y}) - min({x}, {y})",
        "# {t}, at most {b}", "return min({t}, {b})",
    ),
    _family(
        "wrap", "next turn", "x y",
        "# {x} plus {y}", "{x} += {y}",
        "# {x} minus {b} if {x} is at least {b}", "if {x} >= {b}:", "    return {x} - {b}", "return {x}",
    ),
    _family(
        "divide", "share divide", "x y",
        "# {k} if {y} is 0", "if {y} == 0:", "    return {k}", "# {x} divided by {y}", "return {x} // {y}",
    ),
    _family(
        "winner", "win score", "x y",
        "# {k} if {x} is above {y}", "if {x} > {y}:", "    return {k}",
        "# {m} if {x} is {y}", "if {x} == {y}:", "    return {m}", "# else 0", "return 0",
    ),
    _family(
        "rises", "rise grow", "xs",
        "# count of the {xs} above the one before", "{t} = 0", "for {i} in range(1, len({xs})):",
        "    if {xs}[{i}] > {xs}[{i} - 1]:", "        {t} += 1", "return {t}",
    ),
    _family(
        "every", "all every", "xs lo hi",
        "# false if one of the {xs} is below {lo} or above {hi}", "for {v} in {xs}:",
        "    if {v} < {lo} or {v} > {hi}:", "        return False", "# else true", "return True",
    ),
    _family(
        "trimmed", "trim drop", "xs",
        "# 0 if there are fewer than {j} {xs}", "if len({xs}) < {j}:", "    return 0",
        "# sum of the {xs} minus the largest and the smallest", "return sum({xs}) - max({xs}) - min({xs})",
    ),
    _family(
        "remaining", "left spare", "x y",
        "# {x} minus {y} minus {k}", "{t} = {x} - {y} - {k}", "# {t}, at least 0", "return max({t}, 0)",
    ),
    _family(
        "points", "points tally", "x y",
        "# {b} if {x} is 0 and {y} is 0", "if {x} == 0 and {y} == 0:", "    return {b}",
        "# {x} times {k} plus {y}", "return {x} * {k} + {y}",
    ),
)  # fmt: skip

FAMILIES: tuple[Family, ...] = (
    *_BY_HAND,
    *(_family(c.name, c.core.verbs, c.core.inputs, *c.lines, kin=c.kin) for c in combinations()),
)


def families_of(split: Split) -> tuple[Family, ...]:
    return tuple(family for family in FAMILIES if family.split is split)
