"""A CI workflow, read out of any box: a small subset of the YAML that GitHub's runners read.

workflow  name, on (both passed over), env, jobs
job       name, runs-on (passed over), needs, env, strategy.matrix (lists of plain values), steps
step      name, run, env, working-directory, shell (sh or bash); `uses: actions/checkout@...` does nothing, since every
          job starts with the workspace as it is

`${{ matrix.KEY }}` stands in run, env and working-directory for a value of the matrix. All else is refused by name: a
step that is skipped without a word would be a check that nobody makes.
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
"""With every job counted as often as its matrix has values."""
MOST_STEPS = 64
_EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
_MATRIX = re.compile(r"\s*matrix\.([\w-]+)\s*")
_NAME = re.compile(r"[A-Za-z_][\w-]*")
_VARIABLE = re.compile(r"[A-Za-z_]\w*")
_SHELLS = {"sh": ("sh", "-e", "-c"), "bash": ("bash", "-eo", "pipefail", "-c")}
Values = Mapping[str, str]


class WorkflowError(ValueError):
    """A workflow is none, or says what is not run here; names the place and what was expected."""


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    command: tuple[str, ...]
    env: Values
    folder: str
    """Relative to the workspace."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a job, with one value of each list of its matrix."""

    name: str
    steps: tuple[Step, ...]


class _Plain(yaml.BaseLoader):
    """Every value is the text that it is written as; no anchors, which make much of little, and no key twice."""

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
    """Every run of every job, needed ones first. They fail together: the first failure is the workflow's."""
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
    jobs = {name: _job(name, table) for name, table in _entries(top.get("jobs"), "jobs")}
    runs: list[Job] = []
    for name in _in_order(jobs):
        runs += _runs(name, jobs[name], env)
        if len(runs) > MOST_JOBS:
            raise WorkflowError(f"expected at most {MOST_JOBS} runs of jobs, each value of a matrix counted")
    return runs


def _job(name: str, found: Any) -> dict[Any, Any]:
    return _table(found, f"jobs.{name}", {"name", "runs-on", "needs", "env", "strategy", "steps"})


def _in_order(jobs: Mapping[str, Mapping[Any, Any]]) -> Iterator[str]:
    needs = {name: _needs(name, job) for name, job in jobs.items()}
    done: set[str] = set()
    while len(done) < len(jobs):
        ready = [name for name in jobs if name not in done and needs[name] <= done]
        if not ready:
            left = ", ".join(sorted(jobs.keys() - done))
            raise WorkflowError(f"jobs: expected needs that can be met, found a circle or an unknown job at {left}")
        done.update(ready)
        yield from ready


def _needs(name: str, job: Mapping[Any, Any]) -> set[str]:
    found = job.get("needs", [])
    return set(_texts([found] if isinstance(found, str) else found, f"jobs.{name}.needs"))


def _runs(name: str, job: Mapping[Any, Any], env: Values) -> Iterator[Job]:
    place = f"jobs.{name}"
    strategy = _table(job.get("strategy", {}), f"{place}.strategy", {"matrix", "fail-fast"})
    lists = {key: _texts(row, f"{place}.strategy.matrix.{key}") for key, row in _matrix(strategy, place)}
    env = {**env, **_env(job, f"{place}.env")}
    steps = job.get("steps")
    if not isinstance(steps, list) or not 0 < len(steps) <= MOST_STEPS:
        raise WorkflowError(f"{place}.steps: expected a list of 1 to {MOST_STEPS} steps")
    if any(not row for row in lists.values()):
        raise WorkflowError(f"{place}.strategy.matrix: expected lists that are not empty")
    # Counted before they are made: a few short lists multiply to millions.
    if (count := math.prod(map(len, lists.values()))) > MOST_JOBS:
        raise WorkflowError(f"{place}.strategy.matrix: expected at most {MOST_JOBS} runs, found {count}")
    for chosen in itertools.product(*lists.values()):
        values = dict(zip(lists, chosen, strict=True))
        made = (_step(row, f"{place}.steps[{number}]", env, values) for number, row in enumerate(steps))
        yield Job(f"{name} ({', '.join(chosen)})" if chosen else name, tuple(step for step in made if step))


def _matrix(strategy: Mapping[Any, Any], place: str) -> list[tuple[str, Any]]:
    matrix = strategy.get("matrix", {})
    if isinstance(matrix, dict) and (other := {"include", "exclude"} & matrix.keys()):
        raise WorkflowError(f"{place}.strategy.matrix.{min(other)}: not run here")
    return _entries(matrix, f"{place}.strategy.matrix") if matrix else []


def _step(found: Any, place: str, env: Values, values: Values) -> Step | None:
    table = _table(found, place, {"name", "run", "env", "working-directory", "shell", "uses", "with"})
    if "uses" in table:
        if "run" in table or not _text(table["uses"], f"{place}.uses").startswith("actions/checkout@"):
            raise WorkflowError(f"{place}.uses: not run here: {table['uses']}")
        return None
    command = _filled(_text(table.get("run"), f"{place}.run"), values, place)
    if (shell := _text(table.get("shell", "sh"), f"{place}.shell")) not in _SHELLS:
        raise WorkflowError(f"{place}.shell: expected sh or bash, found {shell!r}")
    folder = _filled(_text(table.get("working-directory", "."), f"{place}.working-directory"), values, place)
    if folder.startswith("/") or ".." in folder.split("/"):
        raise WorkflowError(f"{place}.working-directory: expected a folder of the workspace, found {folder!r}")
    own = {**env, **_env(table, f"{place}.env")}
    return Step(
        _text(table.get("name", place), f"{place}.name"),
        (*_SHELLS[shell], command),
        {key: _filled(value, values, place) for key, value in own.items()},
        folder,
    )


def _filled(text: str, values: Values, place: str) -> str:
    def value_of(match: re.Match[str]) -> str:
        named = _MATRIX.fullmatch(match[1])
        if not named or named[1] not in values:
            raise WorkflowError(f"{place}: expected {{{{ matrix.KEY }}}} of this job, found {match[0]!r}")
        return values[named[1]]

    # What opens after the last end is text; to look for its end from each place would take the square of the length.
    head, end, rest = text.rpartition("}}")
    filled = _EXPRESSION.sub(value_of, head + end) + rest
    if "\0" in filled:
        raise WorkflowError(f"{place}: expected text without a zero byte")
    return filled


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
