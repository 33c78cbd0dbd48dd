"""/etc/subuid is read as written; what is taken is the caller's own, and no more than a box can use."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.sandbox.embedded import subuids
from etude.sandbox.embedded.subuids import (
    FEWEST,
    MissingSubids,
    Row,
    find_subordinate_ids,
    longest,
    next_free,
    read_rows,
)
from etude.sandbox.images.ids import IdRange
from etude.sandbox.inside import subordinate

NAMES = st.text(st.characters(exclude_characters=":\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"), min_size=1, max_size=8)
ROWS = st.lists(st.builds(Row, NAMES, st.integers(0, 1 << 32), st.integers(0, 1 << 32)), max_size=8)


@given(ROWS)
def test_rows_are_read_as_they_were_written(rows: list[Row]) -> None:
    assert read_rows("".join(f"{row.owner}:{row.first}:{row.count}\n" for row in rows)) == rows


@pytest.mark.parametrize("line", ["", "ann", "ann:1", "ann:1:", ":1:2", "ann:-1:2", "ann:1:2:3", "ann:x:2", "ann:١:2"])
def test_lines_of_another_format_count_for_nothing(line: str) -> None:
    assert read_rows(f"{line}\nann:1:2") == [Row("ann", 1, 2)]


@given(ROWS, NAMES)
def test_the_first_of_the_longest_of_ones_own_is_taken(rows: list[Row], name: str) -> None:
    own = [row for row in rows if row.owner == name]
    found = longest(rows, {name})
    assert found == (next(row for row in own if row.count == max(row.count for row in own)) if own else None)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host on which every map is granted."""
    (tmp_path / "etc").mkdir()
    monkeypatch.setattr(subuids, "_try", lambda *_: "")
    monkeypatch.setattr(subordinate, "find_program", lambda name: f"/bin/{name}")
    return tmp_path


def write(top: Path, users: str, groups: str) -> Path:
    (top / "etc/subuid").write_text(users)
    (top / "etc/subgid").write_text(groups)
    return top


def test_ranges_by_name_and_by_number(files: Path) -> None:
    name, number = pwd.getpwuid(os.getuid()).pw_name, os.getuid()
    found = find_subordinate_ids(write(files, f"other:1:65536\n{name}:200000:65536\n", f"{number}:300000:65536\n"))
    assert found == IdRange(1, 65_536, (200_000, 300_000))
    assert isinstance(found, IdRange)
    assert found.name == "200000-300000"


@pytest.mark.parametrize(("users", "groups", "used"), [(200_000, 70_000, 65_536), (5_000, 65_536, 5_000)])
def test_a_range_is_used_as_far_as_it_goes(files: Path, users: int, groups: int, used: int) -> None:
    found = find_subordinate_ids(write(files, f"{os.getuid()}:9:{users}", f"{os.getuid()}:9:{groups}"))
    assert found == IdRange(1, used, (9, 9))
    assert isinstance(found, IdRange)
    assert found.name == "9"


@pytest.mark.parametrize("users", ["", "other:1:65536", f"{os.getuid()}:1:{FEWEST - 1}"])
def test_too_few_ids_are_none(files: Path, users: str) -> None:
    assert find_subordinate_ids(write(files, users, f"{os.getuid()}:1:65536")) == MissingSubids("range")
    assert find_subordinate_ids(write(files, f"{os.getuid()}:1:65536", users)) == MissingSubids("range")


def test_without_files_there_is_no_range(files: Path) -> None:
    assert find_subordinate_ids(files) == MissingSubids("range")
    assert next_free(files) == 100_000


def test_without_programs_there_are_none(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subordinate, "find_program", lambda name: "" if name == "newgidmap" else name)
    assert find_subordinate_ids(files) == MissingSubids("program")


def test_what_refuses_a_map_is_said(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subuids, "_try", lambda *_: "newuidmap: no")
    top = write(files, f"{os.getuid()}:1:65536", f"{os.getuid()}:1:65536")
    assert find_subordinate_ids(top) == MissingSubids("newuidmap: no")


def test_a_new_range_begins_above_all_others(files: Path) -> None:
    assert next_free(write(files, "a:100000:65536\nb:900000:10", "c:950000:1000\nd:1:1")) == 951_000
