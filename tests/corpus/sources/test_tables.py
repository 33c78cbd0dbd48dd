"""Tables: every row is read once, wherever parts begin, and none of them ends the reading."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from etude.corpus import CorpusError
from etude.corpus.sources import tables
from etude.corpus.sources.tables import LinesPart, table_parts

ROWS = [
    {"content": "x = 1\n", "max_stars_repo_path": "a/b.py", "max_stars_repo_name": "o/r", "lang": "Python",
     "max_stars_repo_licenses": ["MIT", "Apache-2.0"]},
    {"content": "y", "max_stars_repo_path": None, "max_stars_repo_name": None, "lang": "Go",
     "max_stars_repo_licenses": None},
]  # fmt: skip


def read(path, *, named=True):
    return [one for part in table_parts(path, named=named) for one in part.read(lambda name, size: True)]


@given(
    st.lists(
        st.one_of(st.text(max_size=20).map(lambda text: json.dumps({"text": text})), st.text("ab\r {[", max_size=9))
    ),
    st.integers(1, 40),
    st.booleans(),
)
def test_every_line_is_read_once_wherever_parts_begin(tmp_path_factory, lines, step, ended):
    path = tmp_path_factory.mktemp("t") / "rows.jsonl"
    path.write_bytes("\n".join(lines).encode() + b"\n" * ended)
    whole = path.stat().st_size
    cut = [one.data for start in range(0, whole, step)
           for one in LinesPart(path, 0, start, min(start + step, whole)).read(lambda name, size: True)]  # fmt: skip
    assert cut == [one.data for one in LinesPart(path, 0, 0, whole).read(lambda name, size: True)]
    assert len(cut) == sum(bool(line.strip()) for line in lines)
    assert [text for text in cut if text is not None] == [
        json.loads(line)["text"] for line in lines if '"text"' in line
    ]


JSON = st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=3), lambda j: st.lists(j, max_size=2))


@given(st.dictionaries(st.sampled_from([name for names in tables.COLUMNS.values() for name in names]), JSON))
def test_a_row_of_anything_is_answered(row):
    found = tables._found(row, "o", 7)
    assert isinstance(found.data, str | None)
    assert all(isinstance(one, str) for one in (found.name, found.repository, found.language, *found.licences))


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "jsonl.zst", "parquet"])
def test_the_columns_of_the_stack_are_known(tmp_path, ending):
    path = tmp_path / f"rows.{ending}"
    data = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=1)
        assert len(list(table_parts(path, named=True))) == 2
    else:
        pack = {"jsonl": bytes, "jsonl.gz": gzip.compress, "jsonl.zst": zstandard.ZstdCompressor().compress}[ending]
        path.write_bytes(pack(data))
    first, second = read(path)
    assert first[:2] == ("a/b.py", "x = 1\n")
    assert (first.repository, first.language, first.licences) == ("o/r", "Python", ("MIT", "Apache-2.0"))
    assert (second.name, second.data, second.licences, second.language) == ("", "y", (), "Go")


def test_a_line_beyond_the_limit_is_skipped_and_the_next_one_read(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "LONGEST_LINE", 30)
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "' + "a" * 100 + '"}\n{"text": "b"}\n' + "c" * 200)
    assert [one.data for one in read(path)] == [None, "b", None]


def test_damage_is_one_line_and_a_table_of_something_else_is_left_alone(tmp_path):
    for ending, data in (("jsonl.gz", gzip.compress(b"{}\n" * 99)[:-9]), ("jsonl.zst", b"none"), ("parquet", b"none")):
        path = tmp_path / f"damaged.{ending}"
        path.write_bytes(data)
        with pytest.raises(CorpusError, match=rf"damaged\.{ending} is (damaged|not a parquet file)"):
            read(path)
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"id": [1]}), other)
    assert read(other, named=False) == []
    with pytest.raises(CorpusError, match="has no text: expected a column content or text or code"):
        read(other)
