"""Overlap: whatever is planted is found, under new names too; and what is not there is not."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.text.formats.tiny import merged_file

from etude.cli.tasks.overlap import overlap_command
from etude.tasks import Split, Task, make_tasks, open_source
from etude.tasks.overlap import Item, Leak, OverlapError, find_leaks, item_of_text, read_side
from etude.tasks.overlap.items import WORDS
from etude.tasks.overlap.tokens import WINDOW, windows
from etude.trace import Trace, write_traces

from .verifiers import projects

PYTHON = """def weight(boxes, limit):
    total = 0
    for box in boxes:
        if box.mass > limit:
            total += box.mass - limit
    return total
"""
JAVASCRIPT = """// How heavy are they?
export function weight(boxes, limit = 3) {
  let total = 0;
  for (const box of boxes) {
    if (box.mass > limit) { total += box.mass - limit; }
  }
  return { total, text: "heavy" };
}
"""
PROSE = "The total of a bill must never be negative even if the discount is larger than the sum of all its prices."


def kinds(first: Item, second: Item) -> set[str]:
    return {leak.what for leak in find_leaks([first], [second])}


names = st.from_regex(r"[a-z]{3,9}_[a-z]{2,5}", fullmatch=True)


@given(new=st.lists(names, min_size=4, max_size=4, unique=True), number=st.integers(0, 10**9), note=names)
def test_new_names_numbers_and_comments_hide_no_code(new: list[str], number: int, note: str) -> None:
    python, script = PYTHON, JAVASCRIPT
    for old, name in zip(("weight", "boxes", "limit", "total"), new, strict=True):
        python, script = (text.replace(old, name) for text in (python, script))
    python = python.replace("= 0\n", f"= {number}  # {note}\n")
    script = script.replace("= 0;", f"= {number}; /* {note} */").replace('"heavy"', f"'{note}'").replace("  ", "\t")
    assert kinds(item_of_text("a", PYTHON), item_of_text("b", f"import os\n\n{python}")) >= {"function"}
    assert kinds(item_of_text("a", JAVASCRIPT), item_of_text("b", script)) >= {"code"}


@given(
    before=st.lists(names, max_size=30),
    after=st.lists(names, max_size=30),
    cut=st.integers(0, 30),
    separator=st.sampled_from([" ", "\n", ", ", " **"]),
)
def test_prose_is_found_from_thirteen_words_in_a_row(
    before: list[str], after: list[str], cut: int, separator: str
) -> None:
    words = PROSE.split()[: max(1, len(PROSE.split()) - cut)]
    found = kinds(item_of_text("a", PROSE), item_of_text("b", separator.join([*before, *words, *after]).upper()))
    assert found == ({"text"} if len(words) >= WORDS else set())


@given(text=st.text(max_size=400))
def test_any_text_can_be_looked_at(text: str) -> None:
    item = item_of_text("a", text)
    assert kinds(item, item) == {kind for kind, _ in item.prints}


@given(start=st.integers(0, 60), length=st.integers(1, 90), seed=st.integers(0, 99))
@settings(max_examples=50)
def test_a_stretch_of_code_is_found_from_a_window_on(start: int, length: int, seed: int) -> None:
    """Each token is one of its own kind, so that only what was copied can be alike."""
    rng = random.Random(seed)
    signs = [rng.choice("+-*%^&|=<>!?:;.,") for _ in range(150)]
    other = [rng.choice("()[]{}") for _ in range(100)]
    copied = signs[start : start + length]
    mine = {digest for digest, _ in windows(" ".join(signs))}
    theirs = {digest for digest, _ in windows(" ".join(other[:50] + copied + other[50:]))}
    assert bool(mine & theirs) == (len(copied) >= WINDOW)


def test_the_line_of_a_window_is_where_it_begins() -> None:
    (_, line), *_ = windows("/* a\nb */\n\n" + JAVASCRIPT)
    assert line == 5


def test_accessors_and_short_instructions_are_no_leak() -> None:
    same = "class A:\n    def size(self):\n        return self._size\n"
    assert kinds(item_of_text("a", same), item_of_text("b", same)) == set()
    assert kinds(item_of_text("a", "fix total in shop.py"), item_of_text("b", "fix total in shop.py")) == set()


def write_documents(path: Path, texts: list[str]) -> None:
    data = "".join(json.dumps({"text": text, "kind": "code"}) + "\n" for text in texts).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(zstandard.compress(data) if path.suffix == ".zst" else data)


def test_every_form_of_a_collection_is_read_and_what_was_planted_in_it_found(tmp_path: Path) -> None:
    task = projects.project(tmp_path / "tasks/test/shop", "unittest")
    right = projects.RIGHT.replace("total", "sum_of").replace("prices", "costs")
    innocent = "def f():\n    return 1\n"
    write_documents(tmp_path / "zst/a.jsonl.zst", [innocent, right])
    write_documents(tmp_path / "lines.jsonl", [innocent, f"read it\n{_numbered(right)}\nand mend it"])
    (tmp_path / "code/deep").mkdir(parents=True)
    (tmp_path / "code/deep/prices.py").write_text(right)
    (tmp_path / "code/link.py").symlink_to(tmp_path / "code/deep/prices.py")
    diff = projects.diff(projects.WRONG, projects.RIGHT, "shop/prices.py")
    write_traces(tmp_path / "traces/part-000001.parquet", [Trace("t", "shop", "train", "g", 0, "p", 1, diff=diff)])
    shutil.copytree(task.directory, tmp_path / "others/shop")
    expected = {
        "zst": ("function", "a.jsonl.zst:2"),
        "lines.jsonl": ("function", "lines.jsonl:2"),
        "code": ("function", "deep/prices.py"),
        "traces": ("task", "t"),
        "others": ("task", "shop"),
    }
    for name, found in expected.items():
        leaks = find_leaks(read_side(tmp_path / "tasks"), read_side(tmp_path / name))
        assert found in {(leak.what, leak.b) for leak in leaks}, name
        assert name == "others" or {leak.b for leak in leaks} == {found[1]}, leaks
    hidden = find_leaks(read_side(tmp_path / "tasks"), [item_of_text("x", projects.UNITTEST)])
    assert any("tests/files/tests/test_prices.py" in leak.a for leak in hidden)


def _numbered(text: str) -> str:
    return "\n".join(f"{number} {line}" for number, line in enumerate(text.split("\n"), 1))


def test_splits_of_a_task_set_are_told_apart(train_tasks: list[Task], tasks_folder: Path) -> None:
    made = make_tasks(open_source("microrepo"), Split.TEST, 10, 1, tasks_folder)
    train, test = (list(read_side(tasks_folder, split)) for split in (Split.TRAIN, Split.TEST))
    assert len(train) > len(test) > 10
    assert find_leaks(train, test, numbers=True) == []
    seen = {task.id for task in made if task.cell is not None and task.cell.family_seen}
    assert {leak.b.partition(":")[0] for leak in find_leaks(train, test)} <= seen, "the families are the same"
    assert Leak("task", train_tasks[0].id, train_tasks[0].id, 1, train_tasks[0].id) in find_leaks(train, train)


@pytest.mark.parametrize("published", [False, True])
def test_shards_are_read_back_as_text(tmp_path: Path, published: bool) -> None:
    from etude.corpus import write_shards
    from etude.corpus.shards import Tokens
    from etude.text import Tokenizer, open_tokenizer

    if published:
        (tmp_path / "tokenizer.json").write_text(json.dumps(merged_file()))
    else:
        Tokenizer.train([PYTHON, PROSE], 400).save(tmp_path / "tokenizer.json")
    tokenizer = open_tokenizer(tmp_path)
    encoded = tokenizer.documents(["x = 1\n", PYTHON])
    documents = [Tokens(np.array(ids, dtype=np.uint32), "code", "folder") for ids in encoded]
    write_shards(
        tmp_path / "corpus",
        {"train": lambda first: documents[first:], "valid": lambda first: ()},
        vocab_size=tokenizer.vocab_size,
        shard_tokens=10_000,
        provenance={},
    )
    (leak,) = [leak for leak in find_leaks([item_of_text("a", PYTHON)], read_side(tmp_path / "corpus"))
               if leak.what == "function"]  # fmt: skip
    assert leak.b == "corpus/train:1"
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(OverlapError, match="expected the tokenizer"):
        list(read_side(tmp_path / "corpus"))


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("a.jsonl", b'{"text": 3}\n', 'a.jsonl:1: expected a JSON object with "text"'),
        ("a.jsonl", b"[]\n", "a.jsonl:1"),
        ("a.jsonl", b'{"messages": 1}\n', "a.jsonl:1"),
        ("a.jsonl", b"\xff\n", "is damaged"),
        ("a.jsonl.zst", b"no", "is damaged"),
        ("a.bin", b"no", "expected tasks, documents"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, name: str, data: bytes, told: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(OverlapError, match=told):
        list(read_side(tmp_path))


def test_other_numbers_are_other_functions_where_that_is_asked_for() -> None:
    def item(name: str, text: str) -> Item:
        found = Item(name)
        assert found.add_functions(text)
        return found

    first, others = (
        item("a", PYTHON),
        [item("b", PYTHON.replace("box", "bag")), item("c", PYTHON.replace("= 0", "= 1"))],
    )
    assert [(leak.what, leak.b) for leak in find_leaks([first], others)] == [("function", "b"), ("function", "c")]
    assert [(leak.what, leak.b) for leak in find_leaks([first], others, numbers=True)] == [("instance", "b")]


def test_the_command_prints_a_table_and_fails_if_there_is_a_leak(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in (("a", PYTHON), ("b", PYTHON.replace("total", "mass_of_all")), ("c", JAVASCRIPT)):
        write_documents(tmp_path / name / "x.jsonl", [text])
    assert overlap_command(tmp_path / "a", tmp_path / "c", False) == 0
    assert "nothing shared" in capsys.readouterr().out
    assert overlap_command(tmp_path / "a", tmp_path / "b", False) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["what", "shared", "in", "the", "first", "in", "the", "second", "for", "example"]
    assert out[1].split() == ["function", "1", "x.jsonl:1", "x.jsonl:1", "weight"]
    assert overlap_command(tmp_path / "a", tmp_path / "b", True) == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert row == {"what": "function", "a": "x.jsonl:1", "b": "x.jsonl:1", "count": 1, "sample": "weight"}
