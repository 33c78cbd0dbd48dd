"""Programs that parse their command line with optparse or getopt, to be moved to argparse. `SUBJECTS` lists the
possible options for each subject; each program has some of them, drawn at random."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from etude.tasks.categories.migrations.program import Program
from etude.tasks.verifiers.migration import OldInterface, copied_functions

SUBJECTS = {
    "tea": "cups:int:2 milk:flag sort:choice:green,black,white add:list loud:count note:text",
    "kites": "length:int:30 tail:flag wind:choice:calm,fresh,strong knot:list speed:int:4 owner:text",
    "choir": "singers:int:12 piano:flag voice:choice:alto,bass,tenor carol:list loud:count room:text",
    "bricks": "rows:int:5 mortar:flag bond:choice:running,stack,flemish skip:list tall:int:65 owner:text",
    "snow": "depth:int:20 plough:flag road:choice:main,side,lane closed:list urgent:count name:text",
    "apiary": "jars:int:6 comb:flag flower:choice:clover,heather,linden box:list weight:int:10 keeper:text",
    "maps": "scale:int:25 grid:flag paper:choice:small,large,poster layer:list zoom:count title:text",
    "lamps": "watts:int:9 dim:flag colour:choice:cold,warm,red off:list blink:count room:text",
    "soup": "bowls:int:4 toast:flag spice:choice:mild,warm,hot leaf:list grams:int:3 name:text",
}
Twist = tuple[str, Callable[[int, Sequence[str]], object]]
_TWISTS: dict[str, Twist] = {
    # How the program changes the value of its first option: as a line of the program, and as a function that computes
    # the expected value. The change differs between subjects, so that no two programs have the same structure.
    "tea": ('found["cups"] += len(found["rest"])', lambda number, rest: number + len(rest)),
    "kites": ('found["length"] = max(found["length"], 40)', lambda number, _: max(number, 40)),
    "choir": ('found["singers"] -= found["singers"] % 4', lambda number, _: number - number % 4),
    "bricks": ('found["rows"] = abs(found["rows"] - 40)', lambda number, _: abs(number - 40)),
    "snow": ('found["depth"] = found["depth"] * 10 // 25', lambda number, _: number * 10 // 25),
    "apiary": ('found["jars"] = list(divmod(found["jars"], 6))', lambda number, _: list(divmod(number, 6))),
    "maps": ('found["scale"] = "1:" + str(found["scale"])', lambda number, _: f"1:{number}"),
    "lamps": ('found["watts"] <<= 1', lambda number, _: number << 1),
    "soup": ('found["bowls"] = found["bowls"] if found["rest"] else 0', lambda number, rest: number if rest else 0),
}
_NAMES = {
    "optparse": ("OptionParser", "OptionGroup", "add_option", "make_option", "OptionValueError", "add_option_group"),
    "getopt": ("gnu_getopt", "GetoptError"),
}
_DULLED = b"""import argparse

argparse.ArgumentParser.parse_known_args = lambda self, args=None, namespace=None: (argparse.Namespace(), [])
argparse.ArgumentParser.parse_intermixed_args = argparse.ArgumentParser.parse_known_args
"""
_HEAD = '"""What is asked of {name} on the command line."""\n\n'
_READ = 'def read(arguments):\n    """Everything that was asked for, by name; `rest` is what is no option."""\n'


@dataclass(frozen=True, slots=True)
class Option:
    name: str
    kind: str
    default: object
    choices: tuple[str, ...] = ()

    @property
    def short(self) -> str:
        return f"-{self.name[0]}"


def draw(subject: str, rng: random.Random) -> Program:
    offered = [_option(text) for text in SUBJECTS[subject].split()]
    first, *rest = offered
    chosen = [first, *rng.sample(rest, rng.randint(3, len(rest)))]
    module = rng.choice(("optparse", "getopt"))
    old = _optparse(chosen) if module == "optparse" else _getopt(chosen)
    head = _HEAD.format(name=subject)
    end = f"    {_TWISTS[subject][0]}\n    return found\n"
    return Program(
        name=subject,
        kind=f"{module}-argparse",
        about=f"`{subject}.read(arguments)` says what was asked for on the command line.",
        instruction=(
            f"Move {subject}.py from {module} to argparse: {module} will not be there any more. What read() answers "
            "stays the same; options come before what is no option. What cannot be understood ends with SystemExit."
        ),
        before=head + old + end,
        after=head + _argparse(chosen) + end,
        other=head + _argparse_from_rows(chosen) + end,
        tests=_tests(subject, chosen, rng),
        old=OldInterface((module,), _NAMES[module], _functions(module)),
        new=("argparse",),
        absent=(f"{module}.py",),
        dulled={"tests/__init__.py": _DULLED},
    )


def _option(text: str) -> Option:
    name, kind, *more = text.split(":")
    if kind == "int":
        return Option(name, kind, int(more[0]))
    if kind == "choice":
        choices = tuple(more[0].split(","))
        return Option(name, kind, choices[0], choices)
    defaults: dict[str, object] = {"flag": False, "list": [], "count": 0, "text": ""}
    return Option(name, kind, defaults[kind])


@cache
def _functions(module: str) -> frozenset[str]:
    spec = importlib.util.find_spec(module)
    return copied_functions(Path(spec.origin).read_bytes()) if spec and spec.origin else frozenset()


def _optparse(options: Sequence[Option]) -> str:
    lines = ["    parser = OptionParser()"]
    for one in options:
        how = {
            "int": 'type="int", ',
            "flag": 'action="store_true", ',
            "choice": f'type="choice", choices={list(one.choices)!r}, ',
            "list": 'action="append", ',
            "count": 'action="count", ',
            "text": "",
        }[one.kind]
        lines.append(f'    parser.add_option("{one.short}", "--{one.name}", {how}default={one.default!r})')
    values = "".join(f'        "{one.name}": options.{one.name},\n' for one in options)
    lines.append(
        f'    options, rest = parser.parse_args(arguments)\n    found = {{\n{values}        "rest": rest,\n    }}'
    )
    return "from optparse import OptionParser\n\n\n" + _READ + "\n".join(lines) + "\n"


def _getopt(options: Sequence[Option]) -> str:
    plain = ("flag", "count")
    short = "".join(one.name[0] + ("" if one.kind in plain else ":") for one in options)
    long = [one.name + ("" if one.kind in plain else "=") for one in options]
    defaults = "".join(f'        "{one.name}": {one.default!r},\n' for one in options)
    lines = [f"    found = {{\n{defaults}    }}", "    try:"]
    lines.append(f'        pairs, rest = getopt.gnu_getopt(arguments, "{short}", {long!r})')
    lines.append("    except getopt.GetoptError as error:\n        raise SystemExit(2) from error")
    lines.append("    for option, value in pairs:")
    for one in options:
        lines.append(f'        if option in ("{one.short}", "--{one.name}"):')
        lines.append(_taken(one))
    lines.append('    found["rest"] = rest')
    return "import getopt\n\n\n" + _READ + "\n".join(lines) + "\n"


def _taken(one: Option) -> str:
    refuse = "                raise SystemExit(2)\n"
    return {
        "int": f'            if not value.isdigit():\n{refuse}            found["{one.name}"] = int(value)',
        "flag": f'            found["{one.name}"] = True',
        "choice": f'            if value not in {one.choices!r}:\n{refuse}            found["{one.name}"] = value',
        "list": f'            found["{one.name}"].append(value)',
        "count": f'            found["{one.name}"] += 1',
        "text": f'            found["{one.name}"] = value',
    }[one.kind]


def _new(one: Option) -> str:
    return {
        "int": f"type=int, default={one.default!r}",
        "flag": 'action="store_true"',
        "choice": f"choices={list(one.choices)!r}, default={one.default!r}",
        "list": 'action="append", default=[]',
        "count": 'action="count", default=0',
        "text": 'default=""',
    }[one.kind]


def _argparse(options: Sequence[Option]) -> str:
    lines = ["    parser = argparse.ArgumentParser()"]
    lines += [f'    parser.add_argument("{one.short}", "--{one.name}", {_new(one)})' for one in options]
    lines.append('    parser.add_argument("rest", nargs="*")\n    found = vars(parser.parse_args(arguments))')
    return "import argparse\n\n\n" + _READ + "\n".join(lines) + "\n"


def _argparse_from_rows(options: Sequence[Option]) -> str:
    rows = "".join(f'    ("{one.short}", "--{one.name}", dict({_new(one)})),\n' for one in options)
    lines = [
        '    parser = Parser(prog="program", add_help=False)',
        "    for short, long, how in OPTIONS:\n        parser.add_argument(short, long, **how)",
        "    values, rest = parser.parse_known_args(arguments)",
        '    if any(text.startswith("-") for text in rest):\n        parser.error("unknown option")',
        '    found = {**vars(values), "rest": rest}',
    ]
    return (
        f"from argparse import ArgumentParser as Parser\n\nOPTIONS = [\n{rows}]\n\n\n" + _READ + "\n".join(lines) + "\n"
    )


def _tests(subject: str, options: Sequence[Option], rng: random.Random) -> str:
    cases: list[tuple[str, list[str], dict[str, object]]] = [
        ("nothing", [], {}),
        ("rest", (rest := [f"{subject}{rng.randint(10, 99)}", "more"]), {"rest": rest}),
    ]
    for one in options:
        arguments, value = _given(one, rng)
        cases.append((one.name, arguments, {one.name: value}))
    together = [(one, *_given(one, rng)) for one in options]
    everything = [text for _, arguments, _ in together for text in arguments]
    cases.append(
        ("all_of_them", [*everything, "last"], {one.name: value for one, _, value in together} | {"rest": ["last"]})
    )
    lines = []
    first, (_, twist) = options[0], _TWISTS[subject]
    for name, arguments, found in cases:
        values: dict[str, Any] = {one.name: one.default for one in options} | {"rest": []} | found
        values[first.name] = twist(values[first.name], values["rest"])
        lines.append(
            f"    def test_{name}(self):\n        self.assertEqual({subject}.read({arguments!r}), {values!r})\n"
        )
    for name, arguments in (("unknown", ["--nosuch"]), ("number", [f"--{first.name}", "many"])):
        call = f"{subject}.read({arguments!r})"
        lines.append(
            f"    def test_refused_{name}(self):\n        with self.assertRaises(SystemExit):\n            {call}\n"
        )
    return f"import unittest\n\nimport {subject}\n\n\nclass ProgramTest(unittest.TestCase):\n" + "\n".join(lines)


def _given(one: Option, rng: random.Random) -> tuple[list[str], object]:
    """Draw command-line arguments that set an option. Return them, and the value that the program must read from
    them."""
    number = rng.randint(11, 99)
    long = f"--{one.name}"
    if one.kind == "int":
        return rng.choice(([long, f"{number}"], [f"{long}={number}"], [one.short, f"{number}"])), number
    if one.kind == "flag":
        return [rng.choice((long, one.short))], True
    if one.kind == "count":
        return [one.short] * (count := rng.randint(2, 4)), count
    if one.kind == "choice":
        return [long, value := rng.choice(one.choices[1:])], value
    if one.kind == "list":
        return [one.short, f"a{number}", f"{long}=b{number}"], [f"a{number}", f"b{number}"]
    return [f"{long}=some {number}"], f"some {number}"
