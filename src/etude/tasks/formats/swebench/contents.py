"""The contents of a task made from a SWE-bench instance: the reference solution, the hidden tests and, if it is known,
the workspace.

Invariant: the reference is a plain diff (see plain_patches.py) and, if the workspace is known, applies to it exactly.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from etude.harness.editing.diff import unified_diff
from etude.tasks.change import change_of
from etude.tasks.diff import DiffError
from etude.tasks.formats.swebench.instance import Instance, UnsupportedRow, Variant
from etude.tasks.formats.swebench.plain_patches import plain_diff, reversed_diff
from etude.tasks.formats.swebench.suites import TestPlan
from etude.tasks.task import TaskError
from etude.tasks.verifiers.swebench import WIDE


@dataclass(frozen=True, slots=True)
class Contents:
    reference: str
    tests: Mapping[str, bytes]
    """Files that the grader writes over the workspace."""
    test_patch: str = ""
    """Tests that are known only as a patch, which the grader applies before it writes `tests`."""
    workspace: Mapping[str, bytes] = field(default_factory=dict)
    """Files that the agent sees; empty if they are in an image."""
    hidden: frozenset[str] = frozenset()
    """Files of the base commit that are left out of the agent's workspace."""


def contents_of(instance: Instance, plan: TestPlan, files: Mapping[str, bytes] | None) -> Contents:
    """Return the contents of an instance's task. `files` are those of the base commit, or None if there is no clone."""
    if instance.variant is Variant.SMITH:
        return _bug_patch_contents(instance, plan, files)
    known, assets = files or {}, instance.row.assets()
    reference = _plain(instance, "patch", instance.patch, known)
    tests = _plain(instance, "test_patch", instance.test_patch, known, assets)
    if files is None:
        return Contents(reference, assets, tests)
    _applied(instance, "patch", reference, files)
    after = _applied(instance, "test_patch", tests, files)
    return Contents(reference, {**_without_deleted(after), **assets}, workspace=files)


def _bug_patch_contents(instance: Instance, plan: TestPlan, fixed: Mapping[str, bytes] | None) -> Contents:
    """Return the contents of a SWE-smith task. Its patch introduces the bug, so the reference is the reversed patch.
    Tests that show the bug are hidden from the agent, if their files are known and can be restored at grading."""
    bug = _plain(instance, "patch", instance.patch, fixed or {})
    if fixed is None:
        return Contents(reversed_diff(bug), {})
    changed = _applied(instance, "patch", bug, fixed)
    broken = _without_deleted({**fixed, **changed})
    reference = unified_diff(
        {path: broken[path] for path in changed if path in broken},
        {path: fixed[path] for path in changed if path in fixed},
    )
    hidden = _files_of(plan.fail_to_pass) & fixed.keys()
    tests = {path: fixed[path] for path in _files_of(plan.fail_to_pass + plan.pass_to_pass) & fixed.keys()}
    seen = {path: data for path, data in broken.items() if path not in hidden}
    return Contents(reference, tests, workspace=seen, hidden=frozenset(hidden))


def _files_of(tests: Collection[str]) -> set[str]:
    return {test.partition("::")[0] for test in tests}


def _plain(
    instance: Instance, field: str, patch: str, files: Mapping[str, bytes], left_out: Collection[str] = ()
) -> str:
    """Convert the patch in the instance's `field` to a plain diff (see plain_patches.py). Raises UnsupportedRow if it
    cannot be converted, and TaskError if it is no diff."""
    try:
        diff = plain_diff(patch, files.get, left_out)
    except DiffError as error:
        raise UnsupportedRow(f"{instance.place}: {field}: {error}") from error
    try:
        changes = reversed_diff(diff)
    except DiffError as error:
        raise TaskError(f"{instance.place}: {field}: expected a unified diff: {error}") from error
    if not changes and not left_out:
        raise TaskError(f"{instance.place}: {field}: expected a diff that changes files, found none in it")
    return diff


def _applied(instance: Instance, field: str, diff: str, files: Mapping[str, bytes]) -> Mapping[str, bytes | None]:
    try:
        return change_of(diff, files, lambda path: False, WIDE).files
    except DiffError as error:
        where = f"{instance.repo} at {instance.base_commit[:12]}"
        raise TaskError(f"{instance.place}: {field}: expected a diff of {where}: {error}") from error


def _without_deleted(files: Mapping[str, bytes | None]) -> dict[str, bytes]:
    return {path: data for path, data in files.items() if data is not None}
