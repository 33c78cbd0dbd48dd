"""Rows and their fields: what is wrong is one error that names the place, the field and the expectation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.tasks import TaskError
from etude.tasks.formats.swebench import Row, UnsupportedRow, Variant, instance_of, read_rows

from . import repository as made
from .repository import Repository

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = Repository(
    Path(), COMMIT, "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n", "--- /dev/null\n+++ b/t\n@@ -0,0 +1 @@\n+c\n"
)
SMITH = made.smith(REPOSITORY, REPOSITORY.patch)
ROWS: dict[Variant, dict[str, Any]] = {
    Variant.CLASSIC: made.classic(REPOSITORY),
    Variant.REBENCH: made.rebench(REPOSITORY),
    Variant.REBENCH_V2: made.rebench_v2(REPOSITORY),
    Variant.PRO: made.pro(REPOSITORY),
    Variant.SMITH: SMITH,
}
BAD = {
    "instance_id": [None, "", 5, "../up", "a/b", ".hidden", "a b"],
    "repo": [None, "", "acme", "a/b/c", ["a"], "../x"],
    "base_commit": [None, "", "main", "HEAD", 1.5, "--exec=x"],
    "patch": [None, "", " ", 5, []],
    "test_patch": [None, "", 5],
    "problem_statement": [None, "", "  ", 7],
    "FAIL_TO_PASS": [None, "", "[]", [], "a", "[1]", [1], ["a", ""], {"a": 1}, "{}"],
    "PASS_TO_PASS": [None, "a, b", "[null]", [[]], 5],
    "image": [5, ["x"]],
    "eval_script": [5, {}],
    "log_parser": [5],
    "eval_type": [5, "fail_only"],
}


def instance(**row: Any):
    return instance_of(Row("rows.jsonl: line 3", row))


@pytest.mark.parametrize("variant", ROWS)
def test_variants_are_told_apart(variant: Variant) -> None:
    found = instance(**ROWS[variant])
    assert (found.variant, found.repo) == (variant, "acme/ledger")
    assert found.base_commit == (COMMIT[:8] if variant is Variant.SMITH else COMMIT)
    if variant is not Variant.SMITH:
        assert found.fail_to_pass == tuple(made.PYTEST_IDS["FAIL_TO_PASS"])
        assert found.pass_to_pass == tuple(made.PYTEST_IDS["PASS_TO_PASS"])


def test_a_commit_that_only_a_clone_needs() -> None:
    assert instance(**{**SMITH, "repo": "acme/ledger"}).base_commit == ""
    with pytest.raises(TaskError, match="line 3: base_commit: expected a commit"):
        instance(**{**SMITH, "base_commit": "main"})


def test_what_the_agent_is_told() -> None:
    assert "use the first two digits" not in instance(**ROWS[Variant.CLASSIC]).statement, "a hint gives it away"
    assert "attrs" not in instance(**ROWS[Variant.REBENCH]).statement, "its requirements are packages"
    told = instance(**ROWS[Variant.PRO]).statement
    assert told.endswith("Requirements:\n- `parse` reads tenths\n\nInterface:\nNo new interfaces are introduced")
    assert instance(**ROWS[Variant.REBENCH_V2]).statement.endswith("Interface:\nparse(text) -> int")


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in BAD.items() for value in values])
def test_a_mistake_names_place_and_field(field: str, value: object) -> None:
    with pytest.raises(TaskError, match=rf"^rows.jsonl: line 3: {field}: ") as raised:
        instance(**{**ROWS[Variant.CLASSIC], field: value})
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 250


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(list(ROWS)), st.data())
def test_any_value_in_any_field_is_taken_or_named(variant: Variant, data: st.DataObject) -> None:
    row = dict(ROWS[variant])
    fields = sorted({*row, *BAD, "install_config", "image_assets", "dockerhub_tag", "language"})
    field = data.draw(st.sampled_from(fields))
    row[field] = data.draw(JSON)
    said = "rows.jsonl: line 3: "
    try:
        found = instance(**row)
    except TaskError as error:
        said = str(error)
    else:
        assert found.fail_to_pass
        assert not set(found.fail_to_pass) & set(found.pass_to_pass)
    assert said.startswith("rows.jsonl: line 3: ")
    assert "\n" not in said


def test_pictures_and_tests_that_pass_by_silence_are_refused_by_name() -> None:
    assets = {"problem_statement": ["https://pictures.example/a.png"], "patch": [], "test_patch": []}
    for value in (assets, json.dumps(assets)):
        with pytest.raises(UnsupportedRow, match="Multimodal"):
            instance(**{**ROWS[Variant.CLASSIC], "image_assets": value})
    assert instance(**{**ROWS[Variant.CLASSIC], "image_assets": {"patch": []}})
    with pytest.raises(UnsupportedRow, match="fail_only"):
        instance(**{**ROWS[Variant.CLASSIC], "eval_type": "fail_only"})


def test_every_kind_of_file_holds_the_same_rows(tmp_path: Path) -> None:
    rows = [ROWS[Variant.CLASSIC], {**ROWS[Variant.CLASSIC], "instance_id": "acme__ledger-8"}]
    made.write_rows(tmp_path / "rows.jsonl", *rows)
    (tmp_path / "list.json").write_text(json.dumps(rows))
    (tmp_path / "object.json").write_text(json.dumps({row["instance_id"]: row for row in rows}))
    lists = [{**row, **made.PYTEST_IDS} for row in rows]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(lists), tmp_path / "rows.parquet")
    names = ["rows.jsonl", "list.json", "object.json", "rows.parquet"]
    found = [[instance_of(row) for row in read_rows(tmp_path / name)] for name in names]
    facts = [[(one.id, one.patch, one.fail_to_pass, one.pass_to_pass) for one in instances] for instances in found]
    assert facts[0] == facts[1] == facts[2] == facts[3]
    assert found[0][1].place == f"{tmp_path / 'rows.jsonl'}: line 2"
    assert found[3][1].place == f"{tmp_path / 'rows.parquet'}: row 2"


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.jsonl", b'{"a": 1}\n{"b"\n', "a.jsonl: line 2: expected JSON"),
        ("a.jsonl", b"[1]\n", "a.jsonl: line 1: expected an object"),
        ("a.jsonl", b"\xff\n", "a.jsonl: line 1: expected JSON"),
        ("a.json", b"5", "a.json: expected a list of rows"),
        ("a.json", b"[5]", "a.json: row 1: expected an object"),
        ("a.parquet", b"PAR1", "a.parquet: expected a parquet file"),
        ("a.csv", b"", "a.csv: expected a .jsonl, .json or .parquet file"),
    ],
)
def test_files_that_hold_no_rows(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(TaskError) as raised:
        list(read_rows(tmp_path / name))
    assert said in str(raised.value)
    with pytest.raises(TaskError, match="there is none"):
        list(read_rows(tmp_path / "absent.jsonl"))


class TestTaskRepository:
    def test_is_read_as_text_with_what_lies_beside_it(self, tmp_path: Path) -> None:
        row = {**ROWS[Variant.CLASSIC], "version": "1.10"}
        folder = made.write_task_repository(tmp_path / "bench", row)
        task = folder / "tasks" / row["instance_id"]
        (task / "helper.patch").write_text("x")
        (task / "task.yaml").open("a").write("note: no\n")
        (found,) = read_rows(folder)
        assert found.values["version"] == "1.10", "no number"
        assert found.values["note"] == "no", "no truth value"
        assert set(found.context()) == {"Dockerfile", "helper.patch"}, "no patch, test or hint in the build's context"
        assert found.assets() == {"tests/expected.bin": b"\x00\x01"}
        assert instance_of(found).log_parser == "parse_log_pytest"

    def test_tasks_that_are_not_published_are_passed_over(self, tmp_path: Path) -> None:
        folder = made.write_task_repository(tmp_path / "bench", ROWS[Variant.CLASSIC])
        file = next(folder.glob("tasks/*/task.yaml"))
        file.write_text(file.read_text().replace("split: test", "split: deprecated"))
        assert list(read_rows(folder)) == []

    @pytest.mark.parametrize(
        "name", ["task.yaml", "tests.json", "gold.patch", "test.patch", "eval.sh", "../../sweb.yaml"]
    )
    @pytest.mark.parametrize("data", [None, b"\xff", b"{"])
    def test_a_bad_file_is_named(self, tmp_path: Path, name: str, data: bytes | None) -> None:
        folder = made.write_task_repository(tmp_path / "bench", ROWS[Variant.CLASSIC])
        file = folder / "tasks" / ROWS[Variant.CLASSIC]["instance_id"] / name
        if data is None:
            file.unlink()
        else:
            file.write_bytes(data)
        if data == b"{" and name not in ("task.yaml", "tests.json", "../../sweb.yaml"):
            return  # Text like any other here.
        expected = "tasks" if data is None and name == "task.yaml" else file.name
        with pytest.raises(TaskError, match=expected):
            list(read_rows(folder))

    def test_its_folder_and_its_id_are_one(self, tmp_path: Path) -> None:
        folder = made.write_task_repository(tmp_path / "bench", ROWS[Variant.CLASSIC])
        (folder / "tasks" / ROWS[Variant.CLASSIC]["instance_id"]).rename(folder / "tasks" / "other")
        with pytest.raises(TaskError, match="instance_id: expected the folder's name"):
            list(read_rows(folder))
