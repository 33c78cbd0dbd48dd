"""Parses a CI workflow outside of any box: a small subset of the YAML that GitHub's runners read.

workflow  name, on (both ignored), env, jobs
job       name, runs-on (ignored), needs, env, strategy.matrix (lists of plain values), steps
step      name, run, env, working-directory, shell (sh or bash); `uses: actions/checkout@...` does nothing, since every
          job starts with the workspace as it is

`${{ matrix.KEY }}` in run, env and working-directory is replaced by a value of the matrix. Any other key is refused
with an error that names it, because silently skipping a step would skip a check. Parsing takes linear time, because an
agent wrote the file.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

LARGEST = 1 << 16
MOST_JOBS = 24
"""Maximum number of job runs. A job counts once per combination of its matrix's values."""
MOST_STEPS = 64
MOST_TEXT = 1 << 20
"""Maximum number of characters in the commands and variables of all job runs together."""
_LEAST_COUNTED = 16
"""Number of characters by which a command or variable counts as longer than it is, since even an empty one takes
memory."""
_OPEN, _CLOSE = "${{", "}}"
_MATRIX = re.compile(r"matrix\.([\w-]+)")
_NAME = re.compile(r"[A-Za-z_][\w-]*")
_VARIABLE = re.compile(r"[A-Za-z_]\w*")
_SHELLS = {"sh": ("sh", "-e", "-c"), "bash": ("bash", "-eo", "pipefail", "-c")}
Values = Mapping[str, str]


class WorkflowError(ValueError):
    """A file that is no workflow or uses an unsupported feature. The message names the key and what was expected."""


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    command: tuple[str, ...]
    env: Values
    folder: str
    """Working directory of the command, relative to the workspace."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a CI workflow's job, with one combination of the values in the job's matrix."""

    name: str
    steps: tuple[Step, ...]


class _Plain(yaml.BaseLoader):
    """Loads scalars as text. Refuses duplicate keys, and aliases, which make small files expand enormously."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise WorkflowError("expected no anchors and aliases")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(set(keys)) < len(keys):
            raise WorkflowError(f"expected every key once, found one again in line {node.start_mark.line + 1} ff.")
        return super().construct_mapping(node, deep)


def parse_workflow(data: bytes) -> list[Job]:
    """Return all runs of a workflow's jobs, one for each combination of a job's matrix values. The runs of a job come
    after those of the jobs that it needs. Raises WorkflowError if the workflow is invalid or not supported."""
    if len(data) > LARGEST:
        raise WorkflowError(f"expected at most {LARGEST} bytes, found {len(data)}")
    try:
        found = yaml.load(data.decode("utf-8"), _Plain)
    except WorkflowError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise WorkflowError(f"expected YAML: {str(error).splitlines()[0]}") from error
    top = _table(found, "the workflow", {"name", "on", "env", "jobs"})
    env = _env(top, "env")
    keys = {"name", "runs-on", "needs", "env", "strategy", "steps"}
    jobs = {name: _table(job, f"jobs.{name}", keys) for name, job in _entries(top.get("jobs"), "jobs")}
    if len(jobs) > MOST_JOBS:
        raise WorkflowError(f"expected at most {MOST_JOBS} jobs, found {len(jobs)}")
    runs: list[Job] = []
    substitution = _MatrixSubstitution()
    for name in _in_order(jobs):
        runs += _runs(name, jobs[name], env, substitution)
        if len(runs) > MOST_JOBS:
            raise WorkflowError(
                f"expected at most {MOST_JOBS} job runs, counting each combination of a matrix's values"
            )
    return runs


def _in_order(jobs: Mapping[str, Mapping[Any, Any]]) -> Iterator[str]:
    """Yield the names of the jobs, each after the jobs that it needs."""
    needs = {name: _needs(name, job) for name, job in jobs.items()}
    done: set[str] = set()
    while len(done) < len(jobs):
        ready = [name for name in jobs if name not in done and needs[name] <= done]
        if not ready:
            left = ", ".join(sorted(jobs.keys() - done))
            raise WorkflowError(f"jobs: needs: found a cycle or an unknown job at {left}")
        done.update(ready)
        yield from ready


def _needs(name: str, job: Mapping[Any, Any]) -> set[str]:
    found = job.get("needs", [])
    return set(_texts([found] if isinstance(found, str) else found, f"jobs.{name}.needs"))


def _runs(name: str, job: Mapping[Any, Any], env: Values, substitution: _MatrixSubstitution) -> Iterator[Job]:
    place = f"jobs.{name}"
    strategy = _table(job.get("strategy", {}), f"{place}.strategy", {"matrix", "fail-fast"})
    lists = {key: _texts(row, f"{place}.strategy.matrix.{key}") for key, row in _matrix(strategy, place)}
    env = {**env, **_env(job, f"{place}.env")}
    steps = job.get("steps")
    if not isinstance(steps, list) or not 0 < len(steps) <= MOST_STEPS:
        raise WorkflowError(f"{place}.steps: expected a list of 1 to {MOST_STEPS} steps")
    if any(not row for row in lists.values()):
        raise WorkflowError(f"{place}.strategy.matrix: expected lists that are not empty")
    # The combinations are counted before they are generated, because a few short lists multiply to millions.
    if (count := math.prod(map(len, lists.values()))) > MOST_JOBS:
        raise WorkflowError(f"{place}.strategy.matrix: expected at most {MOST_JOBS} runs, found {count}")
    for chosen in itertools.product(*lists.values()):
        values = dict(zip(lists, chosen, strict=True))
        substitution.values = values
        made = (_step(row, f"{place}.steps[{number}]", env, substitution) for number, row in enumerate(steps))
        yield Job(f"{name} ({', '.join(chosen)})" if chosen else name, tuple(step for step in made if step))


def _matrix(strategy: Mapping[Any, Any], place: str) -> list[tuple[str, Any]]:
    matrix = strategy.get("matrix", {})
    if isinstance(matrix, dict) and (other := {"include", "exclude"} & matrix.keys()):
        raise WorkflowError(f"{place}.strategy.matrix.{min(other)}: not run here")
    return _entries(matrix, f"{place}.strategy.matrix") if matrix else []


def _step(found: Any, place: str, env: Values, substitution: _MatrixSubstitution) -> Step | None:
    table = _table(found, place, {"name", "run", "env", "working-directory", "shell", "uses", "with"})
    if "uses" in table:
        if "run" in table or not _text(table["uses"], f"{place}.uses").startswith("actions/checkout@"):
            raise WorkflowError(f"{place}.uses: not run here: {table['uses']}")
        return None
    command = substitution.substitute(_text(table.get("run"), f"{place}.run"), place)
    if (shell := _text(table.get("shell", "sh"), f"{place}.shell")) not in _SHELLS:
        raise WorkflowError(f"{place}.shell: expected sh or bash, found {shell!r}")
    folder = substitution.substitute(_text(table.get("working-directory", "."), f"{place}.working-directory"), place)
    if folder.startswith("/") or ".." in folder.split("/"):
        raise WorkflowError(f"{place}.working-directory: expected a folder of the workspace, found {folder!r}")
    own = {**env, **_env(table, f"{place}.env")}
    return Step(
        _text(table.get("name", place), f"{place}.name"),
        (*_SHELLS[shell], command),
        {key: substitution.substitute(value, place) for key, value in own.items()},
        folder,
    )


class _MatrixSubstitution:
    """Substitutes values of a job's matrix for `${{ matrix.KEY }}` in texts, with a bound on the total length."""

    def __init__(self) -> None:
        self.values: Values = {}
        self._left = MOST_TEXT

    def substitute(self, text: str, place: str) -> str:
        self._count(_LEAST_COUNTED + len(text))
        parts, at = [], 0
        while (start := text.find(_OPEN, at)) >= 0:
            end = text.find(_CLOSE, start)
            if end < 0:
                raise WorkflowError(f"{place}: expected {_CLOSE} after {_OPEN}")
            value = self._value(text[start + len(_OPEN) : end], place)
            self._count(len(value))
            parts += [text[at:start], value]
            at = end + len(_CLOSE)
        substitute = "".join([*parts, text[at:]])
        if "\0" in substitute:
            raise WorkflowError(f"{place}: expected text without a zero byte")
        return substitute

    def _value(self, expression: str, place: str) -> str:
        named = _MATRIX.fullmatch(expression.strip())
        if not named or named[1] not in self.values:
            raise WorkflowError(f"{place}: expected {{{{ matrix.KEY }}}} of this job, found {expression[:60]!r}")
        return self.values[named[1]]

    def _count(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise WorkflowError(f"expected at most {MOST_TEXT} characters of commands and variables")


def _env(table: Mapping[Any, Any], place: str) -> dict[str, str]:
    found = {str(key): _text(value, f"{place}.{key}") for key, value in _table(table.get("env", {}), place).items()}
    if bad := next((key for key in found if not _VARIABLE.fullmatch(key)), None):
        raise WorkflowError(f"{place}: expected names of variables, found {bad!r}")
    return found


def _table(found: Any, place: str, known: set[Any] | None = None) -> dict[Any, Any]:
    if not isinstance(found, dict):
        raise WorkflowError(f"{place}: expected a table")
    for key in found:
        if known is not None and key not in known:
            raise WorkflowError(f"{place}: {key}: not run here")
    return found


def _entries(found: Any, place: str) -> list[tuple[str, Any]]:
    table = _table(found, place)
    if not table or any(not isinstance(key, str) or not _NAME.fullmatch(key) for key in table):
        raise WorkflowError(f"{place}: expected plain names, at least one")
    return list(table.items())


def _texts(found: Any, place: str) -> Sequence[str]:
    if not isinstance(found, list):
        raise WorkflowError(f"{place}: expected a list")
    return [_text(one, place) for one in found]


def _text(found: Any, place: str) -> str:
    if not isinstance(found, str):
        raise WorkflowError(f"{place}: expected a plain value")
    return found
