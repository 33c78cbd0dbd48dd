"""From sources to shards, with real parts, and what the manifest says about it."""

import json

import numpy as np
import pytest
import zstandard
from tests.text.formats.tiny import merged

from etude.corpus import CorpusError, gather, mixture, open_corpus, write_corpus
from etude.corpus.build import is_held_out
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
    gathered = gather(recipe, documents)
    book = {entry.origin: entry for entry in gathered.provenance}
    assert book["code"].collected == 42
    assert (book["code"].exact_duplicates, book["code"].near_duplicates) == (1, 1)
    assert book["micro 1"].collected == 100
    assert len(gathered.train) == sum(entry.kept for entry in gathered.provenance)
    assert len(gathered.valid) == sum(entry.held_out for entry in gathered.provenance) > 0
    assert {d.text for d in gathered.train}.isdisjoint({d.text for d in gathered.valid})

    tokenizer = make(gathered.texts())
    manifest = write_corpus(tmp_path, gathered, tokenizer, recipe)
    assert {entry["origin"] for entry in manifest["provenance"]["sources"]} == {"code", "micro 1"}
    corpus = open_corpus(tmp_path)
    first = corpus.train.document(0).tolist()
    assert first == next(tokenizer.documents([gathered.train[0].text]))
    assert tokenizer.text(first) == gathered.train[0].text
    batch = mixture(corpus.train, stdlib_share=0.25, length=64, seed=1).batch(0, 8)
    assert batch.tokens.shape == (8, 64)
    assert int(batch.tokens.max()) < tokenizer.vocab_size
    assert gather(recipe, documents) == gathered


def test_held_out_is_decided_by_the_text_alone():
    texts = [f"text {n}" for n in range(2000)]
    held = [is_held_out(text, 0.1) for text in texts]
    assert 140 < sum(held) < 260
    # A larger share only adds to what is held out.
    assert all(is_held_out(text, 0.2) for text, one in zip(texts, held, strict=True) if one)


def test_one_source_alone_gives_every_row(sources, tmp_path):
    recipe, documents = sources
    gathered = gather(recipe.model_copy(update={"folders": []}), documents)
    write_corpus(tmp_path, gathered, Tokenizer.train(gathered.texts(), 600), recipe)
    streams = mixture(open_corpus(tmp_path).train, stdlib_share=0.25, length=64, seed=1)
    assert len(streams.streams) == 1
    assert not np.array_equal(streams.batch(0, 2).tokens, streams.batch(1, 2).tokens)


def test_a_missing_source_is_named():
    with pytest.raises(CorpusError, match="no folder of generated documents"):
        gather(CorpusRecipe(sources=["generated"]), None)
    with pytest.raises(CorpusError, match="no documents"):
        gather(CorpusRecipe(sources=[]), None)
