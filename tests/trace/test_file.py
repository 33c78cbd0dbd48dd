from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.trace.test_columns import assert_equal

from etude.trace import Trace, TraceError, TraceWriter, read_traces, write_traces
from etude.trace.columns import FORMAT_KEY, to_table


def test_one_file(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "eval" / "traces.parquet"
    write_traces(path, [trace, replace(trace, id="b")])
    write_traces(path, [replace(trace, id=f"{n:03d}") for n in range(300)])
    assert [read.id for read in read_traces(path)] == [f"{n:03d}" for n in range(300)]
    assert [file.name for file in path.parent.iterdir()] == ["traces.parquet"]


def test_many_batches_in_a_folder(trace: Trace, tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path)
    assert writer.write([]) is None
    assert writer.write([replace(trace, id="a")]) == tmp_path / "part-000001.parquet"
    writer.write([replace(trace, id="b"), replace(trace, id="c")])
    TraceWriter(tmp_path).write([replace(trace, id="d")])
    assert [read.id for read in read_traces(tmp_path)] == ["a", "b", "c", "d"]
    assert [read.id for read in read_traces(tmp_path, only=["d", "b"])] == ["b", "d"]


def test_two_writers_never_overwrite_each_other(trace: Trace, tmp_path: Path) -> None:
    first, second = TraceWriter(tmp_path), TraceWriter(tmp_path)
    for name in "ab":
        first.write([replace(trace, id=f"first {name}")])
        second.write([replace(trace, id=f"second {name}")])
    assert len(list(read_traces(tmp_path))) == 4


def test_leftovers_of_a_killed_writer_are_passed_over_and_removed(trace: Trace, tmp_path: Path) -> None:
    TraceWriter(tmp_path).write([trace])
    torn = tmp_path / ".part-000002.parquet.1.tmp"
    torn.write_bytes(b"PAR1 half")
    assert len(list(read_traces(tmp_path))) == 1
    TraceWriter(tmp_path)
    assert not torn.exists()


KILLED = """
import sys
from pathlib import Path
from etude.trace import TraceWriter, Trace
writer = TraceWriter(Path(sys.argv[1]))
for n in range(100_000):
    writer.write([Trace(f"{n:06d}", "t", "train", "g", 0, "p", 0)])
    print(n, flush=True)
"""


def test_a_kill_leaves_complete_files_only(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(5):
        process.stdout.readline()
    time.sleep(0.05)
    process.kill()
    told = [5, *(int(line) + 1 for line in process.stdout if line.endswith("\n"))][-1]
    process.wait()
    process.stdout.close()
    ids = [trace.id for trace in read_traces(tmp_path)]
    assert ids == [f"{n:06d}" for n in range(len(ids))]
    assert len(ids) >= told


def test_a_future_version_is_refused_with_one_line(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "traces.parquet"
    pq.write_table(to_table([trace]).replace_schema_metadata({FORMAT_KEY: b"etude-trace/3"}), path)
    with pytest.raises(
        TraceError, match="is etude-trace/3, this version reads etude-trace/2 and older: update"
    ) as caught:
        list(read_traces(path))
    assert "\n" not in str(caught.value)


def test_a_count_that_this_version_does_not_keep_is_passed_over(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "traces.parquet"
    rows = to_table([trace])
    usage = pa.array([{**asdict(trace.usage), "prompt_breaks": 3}])
    pq.write_table(rows.set_column(rows.schema.get_field_index("usage"), "usage", usage), path)
    (read,) = read_traces(path)
    assert read.usage == trace.usage


def test_what_is_no_trace_file_is_named(trace: Trace, tmp_path: Path) -> None:
    other = tmp_path / "other.parquet"
    pq.write_table(to_table([trace]).replace_schema_metadata(None), other)
    with pytest.raises(TraceError, match="not a trace file: expected etude-trace/2"):
        list(read_traces(other))
    other.write_bytes(b"hello")
    with pytest.raises(TraceError, match="damaged or not a Parquet file"):
        list(read_traces(other))
    with pytest.raises(TraceError, match="no traces at"):
        list(read_traces(tmp_path / "none"))
    (tmp_path / "empty").mkdir()
    assert list(read_traces(tmp_path / "empty")) == []


def test_a_full_disk_is_one_clear_line(trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # /dev/full answers every write with ENOSPC: a real full disk without filling one.
    writer = TraceWriter(tmp_path)
    unfinished = tmp_path / f".part-000001.parquet.{__import__('os').getpid()}.tmp"
    unfinished.symlink_to("/dev/full")
    with pytest.raises(TraceError, match="the disk is full; free some space"):
        writer.write([trace])
    assert list(read_traces(tmp_path)) == []
    assert writer.write([trace]) is not None


def test_files_of_the_first_version_are_read(trace: Trace, tmp_path: Path) -> None:
    table = to_table([trace])
    segments = table.column("segments").combine_chunks()
    kept = [segments.values.type.field(n) for n in range(segments.values.type.num_fields - 1)]
    assert [field.name for field in kept][-1] == "expert_bytes"
    struct = pa.StructArray.from_arrays([segments.values.field(field.name) for field in kept], fields=kept)
    old = pa.ListArray.from_arrays(segments.offsets, struct)
    place = table.column_names.index("segments")
    table = table.set_column(place, "segments", old).replace_schema_metadata({FORMAT_KEY: b"etude-trace/1"})
    pq.write_table(table, tmp_path / "part-000001.parquet")
    write_traces(tmp_path / "part-000002.parquet", [trace])
    one, other = read_traces(tmp_path)
    assert_equal(one, other)
