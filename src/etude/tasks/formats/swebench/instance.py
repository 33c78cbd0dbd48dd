"""A SWE-bench instance: one row with validated fields, from SWE-bench or another data set with similar rows.

An invalid field raises a TaskError that says where the row is, and names the field and what was expected. A valid row
that needs something unsupported raises UnsupportedRow.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from etude.tasks.formats.swebench.rows import Row
from etude.tasks.task import TaskError

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}")
_REPO = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*/[A-Za-z0-9_][A-Za-z0-9_.-]*")
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_MIRROR = re.compile(r"(?P<owner>.+?)__(?P<name>.+)\.(?P<commit>[0-9a-f]{7,40})")
"""Matches the names of SWE-smith's copies of repositories."""


class UnsupportedRow(TaskError):
    """The row is valid, but of a kind that is not imported. The message says what would help."""


class Variant(StrEnum):
    """Data sets with rows like SWE-bench's."""

    CLASSIC = "swe-bench"
    """SWE-bench itself, Lite, Verified and Multilingual, with or without the columns of version 5."""
    REBENCH = "swe-rebench"
    REBENCH_V2 = "swe-rebench-v2"
    SMITH = "swe-smith"
    """SWE-smith: the patch in a row introduces the bug instead of fixing it."""
    PRO = "swe-bench-pro"


@dataclass(frozen=True, slots=True)
class Instance:
    row: Row
    variant: Variant
    id: str
    repo: str
    """Repository as owner/name. For SWE-smith's copy of a repository, this is the original repository."""
    base_commit: str
    patch: str
    test_patch: str
    statement: str
    """The instruction: the problem statement, with requirements and interfaces where the variant has them."""
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    image: str = ""
    tag: str = ""
    eval_script: str = ""
    log_parser: str = ""
    test_command: str = ""

    @property
    def place(self) -> str:
        """Where the row was read, for error messages."""
        return self.row.place

    @property
    def workdir(self) -> str:
        """Folder of the code in the variant's images."""
        if self.variant is Variant.REBENCH_V2:
            return "/" + self.repo.rpartition("/")[2]
        return "/app" if self.variant is Variant.PRO else "/testbed"

    @property
    def python(self) -> str:
        """Path of the Python interpreter in the variant's images."""
        plain = self.variant in (Variant.REBENCH_V2, Variant.PRO)
        return "python3" if plain else "/opt/miniconda3/envs/testbed/bin/python"


def instance_of(row: Row) -> Instance:
    field = _Fields(row)
    variant = _variant(field)
    _require_supported(field)
    repo, commit = field.name("repo", _REPO, "owner/name"), ""
    if variant is Variant.SMITH:
        if mirror := _MIRROR.fullmatch(repo.partition("/")[2]):
            repo, commit = f"{mirror['owner']}/{mirror['name']}", mirror["commit"]
        if commit or field.has("base_commit"):  # Only a clone needs it: images contain that commit.
            commit = field.name("base_commit", _COMMIT, "a commit", commit)
    else:
        commit = field.name("base_commit", _COMMIT, "a commit")
    fails = field.ids("FAIL_TO_PASS")
    if not fails:
        raise field.error("FAIL_TO_PASS", "at least one test: without one, doing nothing would pass", [])
    install = field.table("install_config")
    return Instance(
        row=row,
        variant=variant,
        id=field.name("instance_id", _ID, "a plain name"),
        repo=repo,
        base_commit=commit,
        patch=field.text("patch"),
        test_patch=field.text("test_patch", "") if variant is Variant.SMITH else field.text("test_patch"),
        statement=_statement(field, variant),
        fail_to_pass=fails,
        pass_to_pass=tuple(test for test in field.ids("PASS_TO_PASS") if test not in set(fails)),
        image=field.text("image", "") or field.text("docker_image", "") or field.text("image_name", ""),
        tag=field.text("dockerhub_tag", ""),
        eval_script=field.text("eval_script", ""),
        log_parser=field.text("log_parser", "") or install.text("log_parser", ""),
        test_command=install.command("test_cmd"),
    )


def _variant(field: _Fields) -> Variant:
    """Return the row's variant, recognised by columns that other variants lack."""
    if field.has("before_repo_set_cmd", "selected_test_files_to_run", "dockerhub_tag"):
        return Variant.PRO
    if field.has("install_config"):
        return Variant.REBENCH_V2 if field.has("language", "pr_description") else Variant.REBENCH
    repo = str(field.values.get("repo", ""))
    if (
        repo.startswith("swesmith/")
        or field.has("rp_path")
        or (field.has("image_name") and not field.has("test_patch"))
    ):
        return Variant.SMITH
    return Variant.CLASSIC


def _require_supported(field: _Fields) -> None:
    """Refuse rows with pictures, which an agent cannot see, and evaluation types other than "pass_and_fail"."""
    assets = field.values.get("image_assets") or {}
    if isinstance(assets, str):
        assets = _literal(assets) or {}
    if any(assets.values()) if isinstance(assets, dict) else assets:
        raise UnsupportedRow(
            f"{field.place}: image_assets: rows of Multimodal are not imported: an agent sees no images"
        )
    if (kind := field.text("eval_type", "") or "pass_and_fail") != "pass_and_fail":
        raise UnsupportedRow(
            f"{field.place}: eval_type: rows of type {kind} are not imported: "
            "in these rows a test that did not run counts as passed"
        )


def _statement(field: _Fields, variant: Variant) -> str:
    problem = field.text("problem_statement", "").strip()
    if not problem:
        raise UnsupportedRow(
            f"{field.place}: problem_statement: the row has none, so an agent would have no instruction"
        )
    # The column `requirements` of SWE-rebench is a list of packages, which the agent does not need.
    more = {Variant.PRO: ("requirements", "interface"), Variant.REBENCH_V2: ("interface",)}.get(variant, ())
    parts = [(column, field.text(column, "").strip()) for column in more]
    return "\n\n".join([problem, *(f"{column.capitalize()}:\n{text}" for column, text in parts if text)])


class _Fields:
    """Typed access to the values of a row. A value of the wrong type raises a TaskError."""

    def __init__(self, row: Row, values: dict[str, Any] | None = None, below: str = "") -> None:
        self.place = row.place
        self.values = dict(row.values) if values is None else values
        self._row, self._below = row, below

    def has(self, *names: str) -> bool:
        return any(self.values.get(name) not in (None, "") for name in names)

    def error(self, name: str, expected: str, found: object) -> TaskError:
        shown = repr(found)
        shown = shown if len(shown) < 80 else f"{shown[:76]}..."
        return TaskError(f"{self.place}: {self._below}{name}: expected {expected}, found {shown}")

    def text(self, name: str, default: str | None = None) -> str:
        value = self.values.get(name)
        if value is None or (value == "" and default is not None):
            value = default
        if not isinstance(value, str) or (default is None and not value.strip()):
            raise self.error(name, "text", value)
        return value

    def name(self, field: str, pattern: re.Pattern[str], expected: str, default: str = "") -> str:
        value = self.values.get(field) or default
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise self.error(field, expected, value)
        return value

    def ids(self, name: str) -> tuple[str, ...]:
        """Return test ids without duplicates from a list, its JSON or its Python literal. Some variants' columns are in
        lower case."""
        name = name if name in self.values or name.lower() not in self.values else name.lower()
        value = self.values.get(name)
        if isinstance(value, str):
            value = _literal(value)
        if not isinstance(value, list | tuple) or not all(isinstance(test, str) and test.strip() for test in value):
            raise self.error(name, "a list of test ids, or the JSON of one", self.values.get(name))
        return tuple(dict.fromkeys(value))

    def table(self, name: str) -> _Fields:
        value = self.values.get(name)
        value = _literal(value) if isinstance(value, str) else value
        if not isinstance(value, dict | None):
            raise self.error(name, "an object", self.values.get(name))
        return _Fields(self._row, value or {}, f"{name}.")

    def command(self, name: str) -> str:
        value = self.values.get(name)
        if isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
            return "\n".join(value)
        return self.text(name, "")


def _literal(text: str) -> object:
    """Parse JSON or, as some columns have it, a Python literal; None if the text is neither."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def family_of(repo: str) -> str:
    """Return the family of a repository's tasks, which decides their split. It is the same in all data sets."""
    return repo.lower()
