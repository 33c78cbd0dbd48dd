"""From sources to shards, with real parts, and what the manifest says about it."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import zstandard
from tests.text.formats.tiny import merged

from etude.corpus import CorpusError, build, gather, mixture, open_corpus, write_corpus, write_texts
from etude.corpus.build import is_held_out
from etude.corpus.part_files import write_part
from etude.corpus.sources.tables import table_parts
from etude.lineage.state import StageRecord
from etude.recipe.corpus import CorpusRecipe
from etude.text import Tokenizer

FUNCTION = """def f{n}(left, right):
    total = left + {n}
    for item in right:
        total += item * {n}
    return total
"""


def word(number):
    return "".join("abcdefghij"[int(digit)] for digit in str(number))


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    root = tmp_path_factory.mktemp("sources")
    code, documents = root / "code", root / "documents"
    code.mkdir()
    documents.mkdir()
    for number in range(40):
        names = " ".join(word(number * 100 + place) for place in range(60))
        (code / f"m{number:02d}.py").write_text(f'"""{names}"""\n' + FUNCTION.format(n=number) * 3)
    (code / "copy.py").write_text((code / "m00.py").read_text() + "\n")
    (code / "near.py").write_text((code / "m01.py").read_text() + "x = 1\n")
    lines = [
        {"text": f"look up {n} {n * 3} {n * 7}: {n * 11}", "kind": "lookup", "generator": "micro", "version": "1"}
        for n in range(100)
    ]
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    (documents / "a.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(data))
    recipe = CorpusRecipe(sources=["generated"], folders=[str(code)], held_out_share=0.1, shard_tokens=1000)
    return recipe, documents


@pytest.mark.parametrize(
    "make", [lambda texts: Tokenizer.train(texts, 600), lambda _: merged()], ids=["own", "published"]
)
def test_the_whole_way(sources, tmp_path, make):
    recipe, documents = sources
    gathered = gather(recipe, tmp_path / "work", documents)
    book = {row.origin: row for row in gathered.report.sources}
    assert book["code"].files == 42
    assert book["code"].dropped == {"duplicate": 1, "near duplicate": 1}
    assert book["micro 1"].files == 100
    train, valid = list(gathered.documents()), list(gathered.documents(held_out=True))
    assert len(train) == sum(row.kept for row in book.values())
    assert len(valid) == sum(row.held_out for row in book.values()) > 0
    assert {d.text for d in train}.isdisjoint({d.text for d in valid})

    tokenizer = make(gathered.texts())
    manifest = write_corpus(tmp_path / "corpus", gathered, tokenizer, recipe)
    assert {entry["origin"] for entry in manifest["provenance"]["sources"]} == {"code", "micro 1"}
    assert sum(manifest["totals"]["train"]["kinds"].values()) == len(train)
    assert StageRecord("", "", 0, result=manifest) == StageRecord(**asdict(StageRecord("", "", 0, result=manifest)))
    assert "weights" not in manifest
    corpus = open_corpus(tmp_path / "corpus")
    first = corpus.train.document(0).tolist()
    assert first == next(tokenizer.documents([train[0].text]))
    assert tokenizer.text(first) == train[0].text
    batch = mixture(corpus.train, stdlib_share=0.25, length=64, seed=1).batch(0, 8)
    assert batch.tokens.shape == (8, 64)
    assert int(batch.tokens.max()) < tokenizer.vocab_size
    assert list(gather(recipe, tmp_path / "again", documents).documents()) == train


def test_named_sources_are_joined_weighed_and_searched_for_tasks(tmp_path):
    app = tmp_path / "app"
    for name, text in {
        "app/main.py": "from app.models import user\n" + FUNCTION.format(n=1),
        "app/models.py": '"""mail a.b@company.org"""\n' + FUNCTION.format(n=2) * 2,
        "app/solution.py": "# a task's\n" + FUNCTION.format(n=3) * 3,
        "other/go.go": "package other\n\nfunc Area(width int, height int) int {\n\treturn width * height\n}\n",
    }.items():
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_text(text)
    code = {"mine": {"path": str(app), "join_bytes": 10_000, "weight": 3.0}}
    recipe = CorpusRecipe(sources=[], code=code, held_out_share=0.001)
    gathered = gather(recipe, tmp_path / "work", contamination=Solutions())
    (document,) = gathered.documents()
    headers = ["# app/models.py", "# app/main.py", "// other/go.go"]
    assert [line for line in document.text.splitlines() if line in headers] == headers
    assert "company" not in document.text
    (row,) = gathered.report.sources
    assert (row.kept, row.dropped) == (3, {"contaminated": 1})
    assert gathered.report.redacted == {"email": 1}
    assert gathered.report.of_reason("contaminated") == {"mine": 1}

    write_corpus(tmp_path / "corpus", gathered, Tokenizer.train(gathered.texts(), 600), recipe)
    assert open_corpus(tmp_path / "corpus").train.weights == {"mine": 3.0}
    write_texts(tmp_path, gathered)
    (part,) = table_parts(tmp_path / "train.jsonl.zst", named=True)
    (copy,) = part.read(lambda name, size: True)
    assert (copy.data, copy.name) == (document.text, "app/models.py")


class Solutions:
    identity = "1"

    def __call__(self, document):
        return "a task's" in document.text


def test_finished_parts_are_kept_and_parts_of_something_else_are_not(sources, tmp_path, monkeypatch):
    recipe, documents = sources
    work = tmp_path / "work"
    train = list(gather(recipe, work, documents).documents())
    (work / "part-000001.parquet").unlink()
    written = []
    monkeypatch.setattr(
        build, "write_part", lambda source, path, c: (written.append(path.name), write_part(source, path, c))
    )
    assert list(gather(recipe, work, documents).documents()) == train
    assert written == ["part-000001.parquet"]
    (work / ".part-000001.parquet.1.part").write_text("of a killed process")
    other = recipe.model_copy(update={"max_file_bytes": 90_000, "folders": [*recipe.folders, str(documents)]})
    gather(other, work, documents)
    assert written[1:] == []
    gather(recipe, work, documents, contamination=Solutions())
    assert written[1:] == ["part-000000.parquet", "part-000001.parquet"]
    assert not list(work.glob(".*"))


def test_held_out_is_decided_by_the_text_alone():
    texts = [f"text {n}" for n in range(2000)]
    held = [is_held_out(text, 0.1) for text in texts]
    assert 140 < sum(held) < 260
    # A larger share only adds to what is held out.
    assert all(is_held_out(text, 0.2) for text, one in zip(texts, held, strict=True) if one)


def test_one_source_alone_gives_every_row(sources, tmp_path):
    recipe, documents = sources
    gathered = gather(recipe.model_copy(update={"folders": []}), tmp_path / "work", documents)
    write_corpus(tmp_path, gathered, Tokenizer.train(gathered.texts(), 600), recipe)
    streams = mixture(open_corpus(tmp_path).train, stdlib_share=0.25, length=64, seed=1)
    assert len(streams.streams) == 1
    assert not np.array_equal(streams.batch(0, 2).tokens, streams.batch(1, 2).tokens)


def test_a_missing_source_is_named(tmp_path):
    with pytest.raises(CorpusError, match="no folder of generated documents"):
        gather(CorpusRecipe(sources=["generated"]), tmp_path)
    with pytest.raises(CorpusError, match="no documents"):
        gather(CorpusRecipe(sources=[]), tmp_path)
    (tmp_path / "a.py").write_text("def area(width:\n" * 40)
    (tmp_path / "b.kt").write_text("a")
    with pytest.raises(CorpusError, match="its files were dropped: 2 language, 1 syntax"):
        gather(CorpusRecipe(sources=[], code={"mine": {"path": str(tmp_path)}}), tmp_path / "work")
