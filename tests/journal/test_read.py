from __future__ import annotations

import json
from pathlib import Path

import pytest

from etude.journal import JournalError, read_journal, waits


def write(folder: Path, process: str, *entries: tuple[float, str, dict[str, object]], pid: int = 1) -> Path:
    path = folder / f"{process}-{pid}-1000.jsonl"
    lines = [json.dumps({"time": time, "kind": kind, "fields": fields}) for time, kind, fields in entries]
    path.write_text("".join(line + "\n" for line in lines))
    return path


def wait(end: float, on: str, seconds: float) -> tuple[float, str, dict[str, object]]:
    return end, "wait", {"on": on, "seconds": seconds, "deadline": 60, "outcome": "done"}


def test_processes_are_merged_by_time(tmp_path: Path) -> None:
    write(tmp_path, "driver", (1, "a", {}), (3, "c", {"n": 1}))
    write(tmp_path, "rollout-worker-0", (2, "b", {}), (4, "a", {}), pid=77)
    assert [entry.kind for entry in read_journal(tmp_path)] == ["a", "b", "c", "a"]
    assert [entry.process for entry in read_journal(tmp_path, kind="a")] == ["driver", "rollout-worker-0"]
    assert list(read_journal(tmp_path / "none")) == []


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, "driver", (1, "a", {}), (2, "b", {}))
    whole = path.read_bytes()
    for cut in range(1, 40):
        path.write_bytes(whole[:-cut])
        assert [entry.kind for entry in read_journal(tmp_path)] == ["a"]


@pytest.mark.parametrize("damage", ["nonsense", "[]", '{"time": 1, "kind": "a"}', '{"time": "x", "kind": "a"}'])
def test_damage_elsewhere_names_file_and_line(tmp_path: Path, damage: str) -> None:
    path = write(tmp_path, "driver", (1, "a", {}))
    path.write_text(path.read_text() + damage + "\n" + path.read_text())
    with pytest.raises(JournalError, match=r"driver-1-1000.jsonl line 2 is damaged"):
        list(read_journal(tmp_path))


def test_a_foreign_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.jsonl").write_text("{}\n")
    with pytest.raises(JournalError, match=r"notes.jsonl is not a journal file"):
        list(read_journal(tmp_path))


def test_waits_add_up_and_overlapping_ones_count_once(tmp_path: Path) -> None:
    engine = [wait(end, "engine", seconds) for end, seconds in ((9, 1), (10, 4), (11, 4), (12, 0.5), (30, 1))]
    write(tmp_path, "worker", *engine, wait(31, "driver", 2))
    write(tmp_path, "worker", wait(10, "engine", 4), pid=2)
    write(tmp_path, "trainer", wait(10, "driver", 0.5))
    assert waits(tmp_path) == {"trainer": {"driver": 0.5}, "worker": {"driver": 2.0, "engine": 10.5}}
