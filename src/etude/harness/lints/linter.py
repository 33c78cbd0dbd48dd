"""Linter: how a linter is detected, called and its output parsed, as data (`linters/*.toml`)."""

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
    """A configuration file that marks its folder as using the linter."""

    name: str
    """File name; may contain `*`."""
    table: tuple[str, ...] = ()
    """Table (key path) that the file must contain; TOML, JSON and INI files are understood."""


@dataclass(frozen=True, slots=True)
class Linter:
    name: str
    programs: tuple[str, ...]
    """Program names; the first that is installed is called."""
    command: str
    """Command, run in the folder of the configuration, with {program} and {targets}."""
    parser: str
    """Name of the output parser, one of PARSERS."""
    configs: tuple[Config, ...]
    found: tuple[int, ...]
    """Exit codes, besides 0, of a run that completed and found problems. Any other code, or one of these without a
    problem that can be parsed, means that the run failed."""
    scope: Scope
    """"files": files are linted independently, so a part can be linted alone. "project": everything is linted, since a
    change in one file can cause problems in others."""
    roots: Roots
    """"every": each configured folder is linted separately. "outermost": one run covers those below as well."""
    suffixes: tuple[str, ...]
    """Suffixes of the files that it lints; a folder with none of them is skipped."""
    stopped: tuple[int, ...] = ()
    """Exit codes of a run that found problems and therefore skipped the rest."""
    pattern: str = ""
    """For the parser "lines": regular expression of a line with a problem, with the groups path, line and message and,
    optionally, column, code and severity."""
    severity: Severity = "error"
    """Severity of problems whose output names none."""
    own_targets: tuple[str, ...] = ()
    """Keys in its configuration, any of which sets what it lints; it is then called without targets."""
    env: dict[str, str] = field(default_factory=dict)
    seconds: float = 60.0
    """Time limit of one run; a linter that reaches it gave no answer."""


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
    """The linters that ship with the harness, by name."""
    folder = resources.files("etude.harness.lints") / "linters"
    files = [file for file in folder.iterdir() if file.name.endswith(".toml")]
    linters = [parse_linter(file.read_text(encoding="utf-8"), file.name) for file in files]
    return tuple(sorted(linters, key=lambda linter: linter.name))
