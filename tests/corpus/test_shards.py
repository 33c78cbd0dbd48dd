"""What is written is what is read; damage and unfinished writes are errors."""

import itertools
import json
import os
import subprocess
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.corpus import CorpusError, open_corpus, write_shards
from etude.corpus.shards import MANIFEST, Tokens


def tokens(ids, kind="code", source="s"):
    return Tokens(np.array(ids, dtype=np.uint32), kind, source)


DOCUMENTS = [tokens([1, 2, 3], source="stdlib"), tokens([4, 5], "lookup", "generated"), tokens([6] * 9, source="x")]


def from_list(documents):
    return lambda first: itertools.islice(documents, first, None)


def write(folder, train=DOCUMENTS, valid=DOCUMENTS[:1], vocab_size=512, shard_tokens=4, identity=""):
    return write_shards(
        folder,
        {"train": from_list(train), "valid": from_list(valid)},
        vocab_size=vocab_size,
        shard_tokens=shard_tokens,
        provenance={"a": 1},
        identity=identity,
    )


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 69_999), min_size=1, max_size=20), max_size=15), st.integers(1, 40), st.booleans()
)
def test_documents_come_back_as_they_were(tmp_path_factory, ids, shard_tokens, wide):
    folder = tmp_path_factory.mktemp("shards")
    ids = ids if wide else [[token % 500 for token in document] for document in ids]
    train = [tokens(document, f"kind{index % 3}") for index, document in enumerate(ids)]
    write(folder, train=train, vocab_size=70_000 if wide else 500, shard_tokens=shard_tokens)
    shards = open_corpus(folder).train
    assert [shards.document(index).tolist() for index in range(len(shards))] == ids
    assert shards.of_kind("kind1").tolist() == list(range(1, len(ids), 3))


def test_kinds_sources_and_totals(tmp_path):
    manifest = write(tmp_path)
    corpus = open_corpus(tmp_path)
    assert corpus.train.of_kind("code").tolist() == [0, 2]
    assert corpus.train.of_source("generated").tolist() == [1]
    assert corpus.train.of_source("nobody").tolist() == []
    assert manifest["totals"] == {
        "train": {"documents": 3, "tokens": 14, "kinds": {"code": 2, "lookup": 1}},
        "valid": {"documents": 1, "tokens": 3, "kinds": {"code": 1}},
    }
    assert corpus.manifest["provenance"] == {"a": 1}
    assert len(list(tmp_path.glob("train-*.tokens.npy"))) == 2
    assert not list(tmp_path.glob(".*"))


def test_the_same_documents_make_the_same_bytes(tmp_path):
    assert write(tmp_path / "one") == write(tmp_path / "two")


def test_a_shard_is_gathered_and_checked_in_a_few_bytes_a_token(tmp_path):
    ids = np.random.default_rng(0).integers(0, 70_000, size=(200, 1_000), dtype=np.uint32)
    tracemalloc.start()
    try:
        write(tmp_path, train=(tokens(document) for document in ids), vocab_size=70_000, shard_tokens=10**6)
        _, writing = tracemalloc.get_traced_memory()
        tracemalloc.clear_traces()
        tracemalloc.reset_peak()
        open_corpus(tmp_path)
        _, opening = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert writing < 18 * ids.size  # the documents, the shard and the bytes of its file, 4 bytes a token each
    assert opening < 4 * ids.size


def test_a_token_outside_the_vocabulary_is_refused(tmp_path):
    with pytest.raises(CorpusError, match="has token 512, but the tokenizer's vocabulary ends at 511"):
        write(tmp_path, train=[tokens([511]), tokens([512])])


def test_a_rewrite_that_does_not_end_leaves_no_corpus(tmp_path):
    write(tmp_path)

    def interrupted():
        yield DOCUMENTS[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, train=interrupted())
    with pytest.raises(CorpusError, match="no corpus"):
        open_corpus(tmp_path)
    write(tmp_path, train=DOCUMENTS[:2])
    assert len(open_corpus(tmp_path).train) == 2


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 9), max_size=12), st.integers(0, 14), st.integers(1, 20))
def test_an_interrupted_write_goes_on_after_its_last_shard(tmp_path_factory, lengths, killed_at, shard_tokens):
    """The corpus is that of a write which was never interrupted, and no finished shard is asked for again."""
    train = [tokens([number] * length, f"kind{number % 3}") for number, length in enumerate(lengths)]
    asked, stop = [], killed_at % (len(train) + len(DOCUMENTS))

    def documents(first):
        for number, document in enumerate([*train, *DOCUMENTS][first:], first):
            if number == stop:
                raise KeyboardInterrupt
            asked.append(number)
            yield document

    whole, cut = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("cut")
    expected = write(whole, train=[*train, *DOCUMENTS], shard_tokens=shard_tokens, identity="a")
    about = {"vocab_size": 512, "shard_tokens": shard_tokens, "provenance": {"a": 1}, "identity": "a"}
    splits = {"train": documents, "valid": from_list(DOCUMENTS[:1])}
    with pytest.raises(KeyboardInterrupt):
        write_shards(cut, splits, **about)
    finished = sum(len(np.load(path)) for path in cut.glob("train-*.documents.npy"))
    asked.clear()
    stop = -1
    assert write_shards(cut, splits, **about) == expected
    assert min(asked, default=finished) >= finished
    assert {path.name: path.read_bytes() for path in cut.iterdir()} == {
        path.name: path.read_bytes() for path in whole.iterdir()
    }


def test_other_documents_do_not_go_on(tmp_path):
    def interrupted(first):
        yield tokens([9] * 9)
        raise KeyboardInterrupt

    about = {"vocab_size": 512, "shard_tokens": 4, "provenance": {"a": 1}}
    with pytest.raises(KeyboardInterrupt):
        write_shards(tmp_path, {"train": interrupted}, **about, identity="a")
    write(tmp_path, identity="b")
    assert open_corpus(tmp_path).train.document(0).tolist() == [1, 2, 3]


def test_a_damaged_shard_is_found(tmp_path):
    write(tmp_path)
    path = tmp_path / "train-00000.tokens.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorpusError, match=r"train-00000\.tokens\.npy is damaged"):
        open_corpus(tmp_path)


def test_an_unfinished_or_foreign_corpus_is_refused(tmp_path):
    write(tmp_path)
    manifest = tmp_path / MANIFEST
    text = manifest.read_text()
    manifest.write_text(json.dumps(json.loads(text) | {"format": "etude-corpus/9"}))
    with pytest.raises(CorpusError, match="format"):
        open_corpus(tmp_path)
    manifest.write_text(text[:50])
    with pytest.raises(CorpusError, match="not JSON"):
        open_corpus(tmp_path)
    manifest.unlink()
    with pytest.raises(CorpusError, match="no corpus"):
        open_corpus(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs to fill needs root")
def test_a_full_disk_is_one_clear_error(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], check=False)
    if mounted.returncode:
        pytest.skip("this machine does not allow mounting a tmpfs")
    try:
        big = [tokens(range(60_000))]
        with pytest.raises(CorpusError, match="the disk is full") as caught:
            write(small / "corpus", train=big, vocab_size=65_000)
        assert "\n" not in str(caught.value)
        assert not list((small / "corpus").iterdir())
    finally:
        subprocess.run(["umount", str(small)], check=True)
