"""A micro-repository: one to three modules, most with one function and a few with two, and exactly one line with a bug.

Guarantees: the check script shows a FAIL line on the visible inputs; the hidden inputs differ from the visible ones;
the reference edit restores the original text byte for byte.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from etude.tasks.cases import Case, Value
from etude.tasks.sources.microrepo import name_words
from etude.tasks.sources.microrepo.bugs import KINDS, Mutation, mutations
from etude.tasks.sources.microrepo.families import Family
from etude.tasks.sources.microrepo.function import Function, draw_function, draw_inputs, outcomes
from etude.tasks.sources.microrepo.pools import Pool

VISIBLE = 4
CHECK = "check.py"
_CHECK_SCRIPT = (resources.files(__package__) / "check_script.txt").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Damage:
    function: Function
    kind: str
    file: str
    line: int
    """Line number in the file, from 1."""
    wrong: str
    right: str
    """The correct line, with its indentation."""


@dataclass(frozen=True, slots=True)
class Module:
    name: str
    functions: tuple[Function, ...]

    @property
    def file(self) -> str:
        return f"{self.name}.py"

    @property
    def text(self) -> str:
        return "".join(function.text for function in self.functions)


@dataclass(frozen=True, slots=True)
class Repository:
    modules: tuple[Module, ...]
    damage: Damage
    visible: tuple[Case, ...]
    hidden: tuple[Case, ...]

    def files(self) -> dict[str, str]:
        """Return the workspace as the agent finds it, with the bug."""
        texts = {module.file: module.text for module in self.modules}
        lines = texts[self.damage.file].split("\n")
        lines[self.damage.line - 1] = self.damage.wrong
        return texts | {self.damage.file: "\n".join(lines), CHECK: check_script(self.visible)}


@cache
def kinds_of(family: Family) -> frozenset[str]:
    function = draw_function(family, random.Random(family.name))
    return frozenset(m.kind for m in mutations(function.source, function.groups, random.Random(0)))


@dataclass(frozen=True, slots=True)
class Broken:
    """A function with a bug. `inputs` starts with those that the check script uses, and the first one fails."""

    function: Function
    mutation: Mutation
    inputs: tuple[tuple[Value, ...], ...]
    expected: tuple[str, ...]
    got: str
    """What the function does with the first input, in the check script's words, such as "gave 3"."""


def draw_broken(pool: Pool, kind: str, rng: random.Random, inputs: int = 24) -> Broken:
    """Draw a function with a bug of this kind that changes some results. The pool admits both its correct and its
    broken version."""
    able = pool.keeping(lambda family: kind in kinds_of(family))
    while True:
        function = able.draw(rng)
        found = [m for m in mutations(function.source, function.groups, rng) if m.kind == kind]
        candidates = [m for m in found if able.admits(m.apply(function.source))]
        broken = _break(function, candidates, rng, inputs) if candidates else None
        if broken is not None:
            return broken


def _break(function: Function, candidates: list[Mutation], rng: random.Random, count: int) -> Broken | None:
    inputs = draw_inputs(function, rng, count)
    right = outcomes(function.source, function.name, inputs)
    rng.shuffle(candidates)
    for mutation in candidates:
        wrong = outcomes(mutation.apply(function.source), function.name, inputs)
        failing = [i for i, (a, b) in enumerate(zip(right, wrong, strict=True)) if a != b]
        # Nobody makes the mistake of using a variable before it is set.
        if len(failing) < 3 or any(o.raised in ("UnboundLocalError", "NameError") for o in wrong):
            continue
        # The first visible input fails. The others keep the order in which they were drawn, so most failing ones are
        # hidden.
        first = rng.choice(failing)
        order = [first, *(i for i in range(len(inputs)) if i != first)]
        values = [right[i].value for i in order]
        if not set(failing) & set(order[VISIBLE:]):
            return None
        shown = wrong[first].value
        return Broken(
            function,
            mutation,
            inputs=tuple(inputs[i] for i in order),
            expected=tuple(value for value in values if value is not None),
            got=f"raised {wrong[first].raised}" if shown is None else f"gave {show(shown)}",
        )
    return None


def show(value: str) -> str:
    """Return canonical JSON as Python source."""
    return repr(_CONSTANTS[value] if value in _CONSTANTS else eval(value, {"__builtins__": {}}))


_CONSTANTS = {"true": True, "false": False, "null": None}


def fail_line(broken: Broken) -> str:
    """Return the line that the check script prints for the first input."""
    call = ", ".join(map(repr, broken.inputs[0]))
    return f"FAIL {broken.function.name}({call}) {broken.got}, expected {show(broken.expected[0])}"


def draw_repository(pool: Pool, rng: random.Random, kinds: Collection[str]) -> Repository:
    """Draw a repository with one bug. The kind is drawn first, then a family, so that kinds are equally likely."""
    offered = [kind for kind in KINDS if kind in kinds and any(kind in kinds_of(f) for f in pool.families)]
    broken = draw_broken(pool, rng.choice(offered), rng)
    # Most repositories are small; some are large enough that working on them outgrows a small context. Two functions in
    # a file are rare, because finding one of them by name is beyond networks of the intended size.
    count = rng.choice((1, 1, 1, 2, 2, 3, 3))
    sizes = [rng.choice((1,) * 7 + (2,)) for _ in range(count)]
    names = rng.sample(name_words.MODULES, len(sizes))
    home = rng.randrange(len(sizes))
    taken = {broken.function.name}
    # A second function of the broken one's family would show the right code.
    others = pool.keeping(lambda family: family is not broken.function.family)
    modules: list[Module] = []
    visible, hidden = _cases(broken, names[home])
    for place, (name, size) in enumerate(zip(names, sizes, strict=True)):
        functions: list[Function] = []
        for _ in range(size - (place == home)):
            function = others.draw(rng, taken)
            functions.append(function)
            taken.add(function.name)
            shown, kept = _sound_cases(function, name, rng)
            visible += shown
            hidden += kept
        if place == home:
            functions.insert(rng.randint(0, len(functions)), broken.function)
        modules.append(Module(name, tuple(functions)))
    rng.shuffle(visible)
    visible.sort(key=lambda case: case.id != f"{broken.function.name}-0")
    return Repository(tuple(modules), _damage(broken, modules[home]), tuple(visible), tuple(hidden))


def _damage(broken: Broken, module: Module) -> Damage:
    above = module.text.partition(broken.function.text)[0].count("\n")
    mutation = broken.mutation
    right = broken.function.source.split("\n")[mutation.line]
    return Damage(broken.function, mutation.kind, module.file, above + mutation.line + 1, mutation.text, right)


def _cases(broken: Broken, module: str) -> tuple[list[Case], list[Case]]:
    name = broken.function.name
    pairs = enumerate(zip(broken.inputs, broken.expected, strict=True))
    cases = [Case(f"{name}-{i}", module, name, arguments, expected) for i, (arguments, expected) in pairs]
    return cases[:VISIBLE], cases[VISIBLE:]


def _sound_cases(function: Function, module: str, rng: random.Random) -> tuple[list[Case], list[Case]]:
    inputs = draw_inputs(function, rng, 7)
    cases = [
        Case(f"{function.name}-{i}", module, function.name, arguments, outcome.value)
        for i, (arguments, outcome) in enumerate(
            zip(inputs, outcomes(function.source, function.name, inputs), strict=True)
        )
        if outcome.value is not None
    ]
    return cases[:3], cases[3:]


def check_script(cases: Sequence[Case]) -> str:
    """Return check.py for these cases. It prints no time, path or address, so that rollouts can be repeated."""
    rows = "".join(
        f"    ({case.module!r}, {case.function!r}, {case.arguments!r}, {show(case.expected)}),\n" for case in cases
    )
    return _CHECK_SCRIPT.replace("    CASES_HERE\n", rows)
