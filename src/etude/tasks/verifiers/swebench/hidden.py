"""The hidden tests of a SWE-bench task: a patch, tests/test.patch, and files in tests/files/, which override the
patch."""

from __future__ import annotations

from collections.abc import Mapping

from etude.tasks.change import change_of
from etude.tasks.diff import Bounds, DiffError, parse_diff
from etude.tasks.directory import read_files
from etude.tasks.task import Task, TaskError
from etude.tasks.verifiers.tests.suite import FILES, is_in_the_way

TEST_PATCH = "tests/test.patch"
"""Patch of the workspace's tests. Files that it deletes stay in place: they contain no test that must pass."""
WIDE = Bounds(diff_bytes=16 << 20, files=2000, file_bytes=16 << 20, all_bytes=64 << 20, path_length=400)
"""Size limits for patches that belong to a task. The diffs of agents have the grader's tighter limits."""


class HiddenTests:
    def __init__(self, task: Task) -> None:
        self._patch = read_optional(task, TEST_PATCH)
        self._files = read_files(task.directory, FILES) if (task.directory / FILES).is_dir() else {}
        try:
            patches = parse_diff(self._patch, WIDE)
        except DiffError as error:
            raise TaskError(f"{task.directory / TEST_PATCH}: expected a diff: {error}") from error
        named = {path for patch in patches for path in (patch.before, patch.after) if path is not None}
        self.paths = frozenset(named | self._files.keys())

    def protects(self, path: str) -> bool:
        return is_in_the_way(path, self.paths)

    def test_files_over(self, workspace: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the hidden files' contents for a workspace. Raises DiffError if the patch does not apply to it."""
        changed = change_of(self._patch, workspace, lambda path: False, WIDE).files
        return {**{path: data for path, data in changed.items() if data is not None}, **self._files}


def read_optional(task: Task, name: str) -> str:
    """Return the text of a file in the task's folder, or an empty string if the file does not exist."""
    path = task.directory / name
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape") if path.is_file() else ""
    except OSError as error:
        raise TaskError(f"{path}: cannot be read: {error.strerror}") from error
