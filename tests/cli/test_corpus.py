"""etude corpus: a table for people, JSON for scripts, files for training; mistakes as one line with code 2."""

from __future__ import annotations

import io
import json
from functools import partial
from pathlib import Path

import pytest
import zstandard
from tests.cli import here

from etude.corpus import open_corpus
from etude.recipe import load_recipe
from etude.recipe.acting import TasksRecipe
from etude.tasks import generate_tasks, read_files
from etude.text import Tokenizer

etude = partial(here.etude, "corpus")
GOOD = "def area(width, height):\n    return width * height\n"


@pytest.fixture
def code(tmp_path: Path) -> Path:
    root = tmp_path / "My Code"
    root.mkdir()
    for number in range(30):
        (root / f"m{number}.py").write_text(f"# {'abcdefghijklmnopqrstuvwxyzABCD'[number] * 9}\n" + GOOD * number)
    (root / "notes.md").write_text("notes\n" * 20)
    return root


def test_a_folder_becomes_texts_and_a_table(code: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = etude(code, out, "max_file_bytes=500")
    assert done.returncode == 2, "a field of the whole corpus is named in full"
    done = etude(code, out, "corpus.max_file_bytes=1000", "exclude=['m7.*']", "languages=['python']")
    assert done.returncode == 0, done.stderr
    assert [line.split()[:4] for line in done.stdout.splitlines()[:2]] == [
        ["SOURCE", "ORIGIN", "FILES", "MB"],
        ["my-code", "My", "Code", "31"],
    ]
    assert "1 path, 1 language, 11 size" in done.stdout
    with zstandard.open(out / "train.jsonl.zst") as stream:
        rows = [json.loads(line) for line in io.TextIOWrapper(stream, "utf-8")]
    report = json.loads((out / "report.json").read_text())
    assert [row["source"] for row in rows] == ["my-code"] * report["sources"][0]["kept"]
    assert load_recipe(out / "recipe.toml").corpus.code["my-code"].exclude == ["m7.*"]
    assert sorted(path.name for path in out.iterdir()) == [
        "recipe.toml",
        "report.json",
        "train.jsonl.zst",
        "valid.jsonl.zst",
    ]
    again = etude(out / "recipe.toml", tmp_path / "again", "--json")
    assert json.loads(again.stdout) == report


def test_a_tokenizer_makes_shards_and_tasks_are_kept_out(code: Path, tmp_path: Path) -> None:
    tasks = generate_tasks(TasksRecipe(train=2, dev=1, test=1), 5, tmp_path / "tasks")
    for task in tasks:
        for name, data in read_files(task.directory).items():
            if name != "check.py" and len(data) > 60:
                (code / f"{task.split}_{name}").write_bytes(data)
    Tokenizer.train([GOOD], 600).save(tmp_path / "tokenizer.json")
    done = etude(
        code, tmp_path / "out", "--tasks", tmp_path / "tasks", "--tokenizer", tmp_path / "tokenizer.json", "--json"
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    dropped = report["examples"]["contaminated"]
    assert all(name.startswith(("dev_", "test_")) for name in dropped)
    assert report["sources"][0]["dropped"]["contaminated"] >= 2
    assert len(open_corpus(tmp_path / "out").train) == report["sources"][0]["kept"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere", "out"], "corpus.code.nowhere.path: {here}/nowhere is neither a folder, a git repository nor"),
        (["nowhere.toml", "out"], "cannot read recipe nowhere.toml: No such file"),
        (["My Code", "out", "licence=['mit']"], "corpus.code.my-code.licence: there is no such field; did you mean"),
        (["My Code", "out", "licences=['mit']"], "the corpus has no documents: check corpus.sources"),
        (["My Code", "out", "fill_in_middle=0.5", "--tokenizer", "nowhere"], "cannot read tokenizer"),
        (["My Code", "out", "--tasks", "My Code"], "--tasks: My Code has no tasks"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(code: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str) -> None:
    monkeypatch.chdir(code.parent)
    done = etude(*arguments)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("etude: ")]
    assert said.format(here=code.parent) in line
