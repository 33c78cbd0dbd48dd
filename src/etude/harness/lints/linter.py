"""The Linter noun: how a linter is recognised, called and understood, as data (`linters/*.toml`)."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Literal, get_args

from etude.harness.lints.diagnostic import Severity
from etude.harness.lints.parsers import PARSERS
from etude.harness.schema import SchemaError

Scope = Literal["files", "project"]
Roots = Literal["outermost", "every"]


@dataclass(frozen=True, slots=True)
class Config:
    """A file that says that its folder uses the linter."""

    name: str
    """May hold `*`."""
    table: tuple[str, ...] = ()
    """Which the file must hold; TOML, JSON and INI files are understood."""


@dataclass(frozen=True, slots=True)
class Linter:
    name: str
    programs: tuple[str, ...]
    """The first of them that is installed is called."""
    command: str
    """In the folder of its configuration, with {program} and {targets}."""
    parser: str
    """One of PARSERS."""
    configs: tuple[Config, ...]
    found: tuple[int, ...]
    """Exit codes, beside 0, of a run that got through and found something. Any other code, or one of these without a
    problem that can be read, is a run that failed."""
    scope: Scope
    """"files": each file for itself, so a part can be looked at alone. "project": everything, since a change in one
    file shows in others."""
    roots: Roots
    """"every": each configured folder is looked at by itself. "outermost": one run sees to the folders below."""
    suffixes: tuple[str, ...]
    """Of the files that it looks at; a folder that has none of them is left alone."""
    stopped: tuple[int, ...] = ()
    """Exit codes of a run that found something and therefore did not look at the rest."""
    pattern: str = ""
    """For the parser "lines": what a line with a problem looks like, with the groups path, line, message and, where
    there are such, column, code and severity."""
    severity: Severity = "error"
    """Where its output names none."""
    own_targets: tuple[str, ...] = ()
    """Keys of its table, any of which says what it looks at: then it is given no targets."""
    env: dict[str, str] = field(default_factory=dict)
    seconds: float = 60.0
    """Declared limit of one run: a linter that reaches it gave no answer."""


def parse_linter(text: str, source: str) -> Linter:
    try:
        data = tomllib.loads(text)
        configs = tuple(Config(**{**entry, "table": tuple(entry.get("table", ()))}) for entry in data.pop("configs"))
        lists = {name: tuple(value) for name, value in data.items() if isinstance(value, list)}
        linter = Linter(**{**data, **lists}, configs=configs)
        re.compile(linter.pattern)
    except (tomllib.TOMLDecodeError, TypeError, KeyError, re.error) as error:
        raise SchemaError(f"linter {source}: {error}") from error
    choices = {"parser": PARSERS, "scope": get_args(Scope), "roots": get_args(Roots), "severity": get_args(Severity)}
    for name, allowed in choices.items():
        if getattr(linter, name) not in allowed:
            raise SchemaError(f"linter {source}: {name} is {getattr(linter, name)!r}, expected one of {list(allowed)}")
    return linter


@cache
def builtin_linters() -> tuple[Linter, ...]:
    """Those that ship with the harness, by name."""
    folder = resources.files("etude.harness.lints") / "linters"
    files = [file for file in folder.iterdir() if file.name.endswith(".toml")]
    linters = [parse_linter(file.read_text(encoding="utf-8"), file.name) for file in files]
    return tuple(sorted(linters, key=lambda linter: linter.name))
