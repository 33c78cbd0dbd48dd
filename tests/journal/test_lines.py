"""Rows survive a kill between any two bytes and a disk that fills up in the middle of a line."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.journal import JournalError, append_rows, drop_torn_line, read_metrics, read_rows, whole_lines

values = st.none() | st.integers() | st.text(max_size=6) | st.floats(allow_nan=False)
rows = st.lists(st.dictionaries(st.text(max_size=4), values, max_size=3), max_size=5)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rows") / "rows.jsonl"


@settings(deadline=None)
@given(written=rows, cut=st.integers(0, 400), later=rows)
def test_a_file_cut_at_any_byte_holds_the_first_rows_and_takes_more(
    file: Path, written: list[dict[str, object]], cut: int, later: list[dict[str, object]]
) -> None:
    file.unlink(missing_ok=True)
    drop_torn_line(file)
    assert not file.exists()
    append_rows(file, written)
    assert list(read_rows(file)) == written
    data = file.read_bytes()
    file.write_bytes(data[:cut])
    kept = written[: data[:cut].count(b"\n")]
    assert list(read_rows(file)) == kept
    drop_torn_line(file)
    append_rows(file, later)
    assert list(read_rows(file)) == kept + later


def test_lines_that_hold_no_row_are_still_lines(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    assert list(whole_lines(file)) == []
    file.write_bytes(b"a\n\nb\xff\nc")
    assert list(whole_lines(file)) == [b"a", b"", b"b\xff"]


@pytest.mark.parametrize("damage", ["nonsense", "", "[]", "\0\0\0", '{"a": 1}{"a": 2}'])
def test_damage_before_the_end_names_file_and_line(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(f'{{"a": 1}}\n{damage}\n{{"a": 3}}\n')
    read = read_rows(file)
    assert next(read) == {"a": 1}
    with pytest.raises(JournalError, match=r"rows\.jsonl line 2 is damaged: expected a JSON object"):
        next(read)


def test_of_a_step_that_was_logged_twice_the_later_row_counts(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    assert read_metrics(file) == []
    append_rows(file, [{"step": step, "session": 1} for step in (1, 2, 3)])
    append_rows(file, [{"step": step, "session": 2} for step in (2, 3, 4)])
    assert [(row["step"], row["session"]) for row in read_metrics(file)] == [(1, 1), (2, 2), (3, 2), (4, 2)]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs to fill needs root")
def test_a_disk_that_fills_up_leaves_no_half_line(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], check=False)
    if mounted.returncode:
        pytest.skip("this machine does not allow mounting a tmpfs")
    try:
        file = small / "rows.jsonl"
        append_rows(file, [{"n": 0}])
        with pytest.raises(OSError, match="No space left on device"):
            append_rows(file, [{"n": 1, "text": "x" * 100_000}])
        append_rows(file, [{"n": 2}])
        assert [json.loads(line)["n"] for line in whole_lines(file)] == [0, 2]
    finally:
        subprocess.run(["umount", str(small)], check=True)
