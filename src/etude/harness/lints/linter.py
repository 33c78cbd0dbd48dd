"""Describes, as data (`linters/*.toml`), how each linter is detected and called and how its output is parsed."""

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
    """A kind of configuration file. A folder that contains such a file is configured for the linter."""

    name: str
    """Name of the configuration file; may contain `*`."""
    table: tuple[str, ...] = ()
    """Keys, outermost first, of the table that makes a file of this name the linter's configuration. A file that does
    not parse counts if its text contains the table's name. If `table` is empty, every file of this name counts."""


@dataclass(frozen=True, slots=True)
class Linter:
    name: str
    programs: tuple[str, ...]
    """Program names; the first one that is installed is called."""
    command: str
    """Command to run in a folder that contains the linter's configuration. {program} is replaced by the installed
    program. {targets} is replaced by the path to lint; for a run on the whole folder it is empty if the configuration
    lists what to lint."""
    parser: str
    configs: tuple[Config, ...]
    found: tuple[int, ...]
    """Exit codes, besides 0, of a run that completed and found problems. With any other code, or if no problem can be
    parsed from the output, the run failed."""
    scope: Scope
    """"files": files are linted independently, so some files can be linted alone. "project": the whole folder is
    linted, because a change in one file can cause problems in others."""
    roots: Roots
    """"every": the linter runs once in each folder with its configuration. "outermost": it runs only in the outermost
    of these folders, and that run also covers the configured folders below it."""
    suffixes: tuple[str, ...]
    """Suffixes of the files that the linter checks. Folders without such files are not linted."""
    stopped: tuple[int, ...] = ()
    """Exit codes of a run that found problems and, because of them, did not check the remaining files."""
    pattern: str = ""
    """For the parser "lines": regular expression of a line with a problem, with the groups path, line and message and,
    optionally, column, code and severity."""
    severity: Severity = "error"
    """Severity of a problem if the linter's output does not give one."""
    own_targets: tuple[str, ...] = ()
    """Keys of the configuration that list what to lint. If one of them is set, a run on the whole folder gets no
    targets on its command line."""
    env: dict[str, str] = field(default_factory=dict)
    seconds: float = 60.0
    """Time limit of one run in seconds; a run that reaches it has failed."""


def parse_linter(text: str, source: str) -> Linter:
    """Parse a linter's data file; `source` names the file in error messages. Raises SchemaError."""
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
    folder = resources.files("etude.harness.lints") / "linters"
    files = [file for file in folder.iterdir() if file.name.endswith(".toml")]
    linters = [parse_linter(file.read_text(encoding="utf-8"), file.name) for file in files]
    return tuple(sorted(linters, key=lambda linter: linter.name))
