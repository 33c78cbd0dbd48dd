"""Imports SWE-bench rows as task directories.

Invariant: nothing that an agent sees contains the reference solution, the hidden tests or the hints. If the workspace's
files are known, the reference applies to them exactly.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.tasks.directory import REFERENCE_DIFF, REPOSITORY, read_task, write_task
from etude.tasks.formats.swebench.clones import Clones
from etude.tasks.formats.swebench.contents import Contents, contents_of
from etude.tasks.formats.swebench.environments import Environment, ImportSources, environment_of
from etude.tasks.formats.swebench.instance import Instance, UnsupportedRow, family_of, instance_of
from etude.tasks.formats.swebench.rows import read_rows
from etude.tasks.formats.swebench.suites import TestPlan, plan_of
from etude.tasks.task import SplitViolation, Task, TaskError, TaskLimits, split_of
from etude.tasks.verifiers.swebench import EVAL_SCRIPT, TEST_PATCH
from etude.tasks.verifiers.tests import suite_files

VERSION = 1
LIMITS = TaskLimits(turns=200, tool_calls=400, tokens=200_000, wall_seconds=3600.0, verifier_seconds=1800.0)


@dataclass(frozen=True, slots=True)
class Imported:
    tasks: tuple[Task, ...]
    refused: Mapping[str, str]
    """Reason for each row that was not imported, by instance id."""


def import_rows(
    source: Path,
    dest: Path,
    *,
    clones: Path | None = None,
    image: str = "",
    python: str = "",
    only: Collection[str] = (),
    on_progress: Callable[[int, int], None] | None = None,
) -> Imported:
    """Write `<dest>/<split>/<instance id>/` for every row of the source, or only for the ids in `only`. Identical tasks
    that already exist are kept.

    The environment of a task is the image that `image` names, else the files of a local clone below `clones` over the
    host's system folders, else the Dockerfile of a task repository, else the row's own image. If both an image and a
    clone are given, the clone provides what patches alone do not: renamed files, and tests as files.

    Raises TaskError for an invalid row. All rows are read before the first task is written, but whether a patch applies
    to its clone is only found when its task is made.
    """
    sources = ImportSources(Clones(clones) if clones else None, image, python)
    refused: dict[str, str] = {}
    instances = list(_instances(source, set(only), refused))
    tasks: list[Task] = []
    for number, instance in enumerate(instances, 1):
        try:
            task, files = make_task(instance, sources, dest)
        except UnsupportedRow as error:
            refused[instance.id] = str(error)
        else:
            if not _is_written(task, files):
                write_task(task, files)
            tasks.append(task)
        if on_progress:
            on_progress(number, len(instances))
    return Imported(tuple(tasks), refused)


def _instances(source: Path, only: Collection[str], refused: dict[str, str]) -> Iterator[Instance]:
    seen: dict[str, str] = {}
    for row in read_rows(source):
        identity = str(row.values.get("instance_id", row.place))
        if only and identity not in only:
            continue
        if identity in seen:
            raise TaskError(
                f"{row.place}: instance_id: expected different ids, found {identity!r} again ({seen[identity]})"
            )
        seen[identity] = row.place
        try:
            yield instance_of(row)
        except UnsupportedRow as error:
            refused[identity] = str(error)
    if missing := sorted(set(only) - seen.keys()):
        raise TaskError(f"{source}: expected rows of these ids, there are none: {', '.join(missing)}")


def _is_written(task: Task, files: Mapping[str, bytes]) -> bool:
    """Return whether the task's directory already has this task, made from the same row for the same environment, and
    all of `files` with the same contents. Other files there are ignored."""
    try:
        found = read_task(task.directory, {task.split})
        if any((task.directory / name).read_bytes() != data for name, data in files.items()):
            return False
    except (TaskError, SplitViolation, OSError):
        return False
    return _identity_of(found) == _identity_of(task)


def _identity_of(task: Task) -> tuple[object, ...]:
    made = [task.provenance.get(key) for key in ("version", "digest")]
    return (*made, task.config.get("environment"), *(task.verifier.get(key) for key in ("type", "python")))


def make_task(instance: Instance, sources: ImportSources, dest: Path) -> tuple[Task, dict[str, bytes]]:
    plan = plan_of(instance)
    files = sources.clones.files(instance, links=bool(sources.image)) if sources.clones else None
    contents = contents_of(instance, plan, files)
    environment = environment_of(instance, sources, contents.hidden)
    family = family_of(instance.repo)
    split = split_of(family)
    task = Task(
        id=instance.id,
        instruction=instance.statement,
        category="debugging",
        split=split,
        family=family,
        kind=instance.variant.value,
        directory=dest / split.value / instance.id,
        limits=LIMITS,
        provenance=_provenance(instance, plan),
        config=environment.config,
        verifier=_verifier(plan, environment, contents),
    )
    return task, _files(instance, plan, environment, contents)


def _verifier(plan: TestPlan, environment: Environment, contents: Contents) -> dict[str, Any]:
    verifier = dict(plan.verifier)
    if verifier.get("runner") in ("pytest", "unittest"):
        verifier |= {"python": environment.python, "path": _path(contents.workspace)}
    if verifier.get("runner") == "pytest" and environment.bare:
        verifier["pytest"] = "brought"
    return verifier


def _files(instance: Instance, plan: TestPlan, environment: Environment, contents: Contents) -> dict[str, bytes]:
    tests: Mapping[str, bytes] = contents.tests
    found = {f"environment/{name}": data for name, data in environment.files.items()}
    if environment.bare:
        found |= {f"{REPOSITORY}/{path}": data for path, data in contents.workspace.items()}
    if plan.script:
        found[EVAL_SCRIPT] = plan.script.encode()
    if instance.eval_script and plan.script:
        # The script applies the tests' patch itself; files that no patch can carry are placed over the workspace
        # before.
        tests = instance.row.assets()
    elif contents.test_patch:
        found[TEST_PATCH] = contents.test_patch.encode("utf-8", "surrogateescape")
    found[REFERENCE_DIFF] = contents.reference.encode("utf-8", "surrogateescape")
    return found | suite_files(tests, plan.fail_to_pass, plan.pass_to_pass)


def _path(files: Collection[str]) -> list[str]:
    """Return the folders to add to Python's path, so that code that is not installed can be imported."""
    apart = any(name.startswith("src/") for name in files) and "src/__init__.py" not in files
    return [".", "src"] if apart else ["."]


def _provenance(instance: Instance, plan: TestPlan) -> dict[str, Any]:
    row = json.dumps(dict(instance.row.values), sort_keys=True, default=str)
    known = {
        "source": "swe-bench",
        "version": VERSION,
        "variant": instance.variant.value,
        "repository": instance.repo,
        "commit": instance.base_commit,
        "row": instance.place,
        "digest": hashlib.sha256(row.encode()).hexdigest(),
    }
    return {**known, **({"passed_over": list(plan.passed_over)} if plan.passed_over else {})}
