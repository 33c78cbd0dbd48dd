"""Builds the pretraining corpus of a run: gather (read, clean, deduplicate, hold out), then write (tokenise, shard).

There are two steps because the tokenizer is trained on the texts that the first step gathers. The result of each step
depends only on its inputs, not on the number of processes. Memory holds a few megabytes per process, and half a
kilobyte per document.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from etude.corpus.cleaning import header, language_of, unchecked
from etude.corpus.dedup import SIGNATURE, first_copies, near_duplicates
from etude.corpus.document import Document
from etude.corpus.errors import CorpusError
from etude.corpus.fill_in_middle import FillInMiddle
from etude.corpus.part_files import PartFiles, Tally, TaskTexts, write_part
from etude.corpus.report import Report, SourceReport
from etude.corpus.repository_order import File, joined
from etude.corpus.shards import Tokens, write_shards
from etude.corpus.sources import Source, code_sources, parts_of
from etude.corpus.workers import cores, each
from etude.journal import code_digest, write_atomically
from etude.journal.files import disk_problem, sync
from etude.recipe.corpus import CorpusRecipe
from etude.text import TextTokenizer, Tokenizer

_IDENTITY = "identity"
REPORT = "report.json"
_SMALL = 8 << 20
"""Bytes or characters below which starting processes costs more than it gains."""
_ENCODED = 1 << 20
"""Characters of the documents that are tokenised at once."""
Progress = Callable[[int, int], None]
"""Called with what is done and with all that there is: bytes to read, or documents to tokenise."""


@dataclass(frozen=True, slots=True)
class Order:
    """Which files make which document."""

    files: NDArray[np.int64]
    """Indices of the files, document after document."""
    firsts: NDArray[np.int64]
    """Index of each document's first file in `files`, and the number of files."""

    def __len__(self) -> int:
        return len(self.firsts) - 1

    def of(self, place: int) -> list[int]:
        found: list[int] = self.files[self.firsts[place] : self.firsts[place + 1]].tolist()
        return found


class Gathered:
    """The documents of a corpus, on disk in the work folder until the corpus is written."""

    def __init__(self, files: PartFiles, order: Order, recipe: CorpusRecipe, read: str) -> None:
        """`read` is the identity of what the files were read from."""
        self._files, self._order = files, order
        texts = (self._document(place).text for place in range(len(order)))
        self._held = np.fromiter((is_held_out(text, recipe.held_out_share) for text in texts), dtype=bool)
        self.weights = {name: code.weight for name, code in recipe.code.items()}
        self.identity = hashlib.sha256(f"{read} {json.dumps(recipe.made_from())}".encode()).hexdigest()
        """Documents of one identity are the same, in the same order."""
        self.report: Report

    def __len__(self) -> int:
        return len(self._order)

    def documents(self, *, held_out: bool = False, first: int = 0) -> Iterator[Document]:
        """Yield the documents of the train split, or those that are held out, from the one with the number `first`."""
        return (self._document(place) for place in np.flatnonzero(self._held == held_out)[first:].tolist())

    def texts(self) -> Iterator[str]:
        """The train split's texts, the only ones that a tokenizer may be trained on."""
        return (document.text for document in self.documents())

    def count(self, *, held_out: bool = False) -> int:
        return int((self._held == held_out).sum())

    def files(self, *, held_out: bool = False) -> NDArray[np.int64]:
        """Return the indices of the files of the train split's documents, or of those that are held out."""
        found: NDArray[np.int64] = self._order.files[np.repeat(self._held == held_out, np.diff(self._order.firsts))]
        return found

    def _document(self, place: int) -> Document:
        every = [self._files.document(index) for index in self._order.of(place)]
        first = every[0]
        if len(every) == 1:
            return first
        text = "".join(header(one.name, language_of(one.name)) + one.text.rstrip("\n") + "\n\n" for one in every)
        return Document(text, first.kind, first.source, first.origin, first.name, first.repository)


def gather(
    recipe: CorpusRecipe,
    work: Path,
    documents: Path | None = None,
    *,
    contamination: TaskTexts | None = None,
    processes: int = 0,
    progress: Progress = lambda done, total: None,
) -> Gathered:
    """Read, clean and deduplicate all sources, and split them. The folder `work` holds what was done: a killed run goes
    on with it. `documents` is the folder of generated documents, required for the source "generated"."""
    sources = list(parts_of(recipe, documents))
    files = _read_parts(sources, work, contamination, processes, progress)
    if not len(files):
        raise CorpusError(_why_empty(files))
    kept = _without_duplicates(files, recipe.near_duplicate_similarity, work)
    kept = _drop(files, kept, files.numbers("contaminated"), "contaminated")
    gathered = Gathered(files, _joined(files, kept, recipe), recipe, (work / _IDENTITY).read_text())
    gathered.report = _report(files, gathered, recipe)
    return gathered


def is_held_out(text: str, share: float) -> bool:
    """Whether a document is held out. A hash of its text alone decides: no seed, order or other document matters."""
    point = int.from_bytes(hashlib.sha256(b"etude-held-out/1:" + text.encode("utf-8", "surrogatepass")).digest()[:8])
    return point / 2**64 < share


def write_corpus(
    folder: Path,
    gathered: Gathered,
    tokenizer: TextTokenizer,
    recipe: CorpusRecipe,
    *,
    processes: int = 0,
    progress: Progress = lambda done, total: None,
) -> dict[str, Any]:
    """Write the tokenised documents as shards. Return the manifest, which names every source and its version. A killed
    call goes on after the last shard that it wrote."""
    shares = {name: code.fill_in_middle for name, code in recipe.code.items() if code.fill_in_middle}
    middle = FillInMiddle.of(tokenizer, shares) if shares else None
    # A published tokenizer's library uses all cores by itself.
    if not isinstance(tokenizer, Tokenizer) or sum(one.kept_bytes for one in gathered.report.sources) < _SMALL:
        processes = 1
    total = len(gathered)

    def encoded(first: int, *, held_out: bool) -> Iterator[Tokens]:
        done = first + (gathered.count() if held_out else 0)
        progress(done, total)
        batches = _batches(gathered.documents(held_out=held_out, first=first))
        for tokens in each(_encode, (tokenizer, None if held_out else middle), batches, processes or cores()):
            yield from tokens
            done += len(tokens)
            progress(done, total)

    write_atomically(folder / REPORT, json.dumps(gathered.report.as_json(), indent=1).encode())
    return write_shards(
        folder,
        {"train": partial(encoded, held_out=False), "valid": partial(encoded, held_out=True)},
        vocab_size=tokenizer.vocab_size,
        shard_tokens=recipe.shard_tokens,
        provenance={"sources": gathered.report.as_json()["sources"]},
        weights=gathered.weights,
        identity=f"{gathered.identity} {tokenizer.identity}",
    )


def write_texts(folder: Path, gathered: Gathered) -> None:
    """Write the documents as tables, train.jsonl.zst and valid.jsonl.zst, which a recipe may name as a source."""
    write_atomically(folder / REPORT, json.dumps(gathered.report.as_json(), indent=1).encode())
    for name, held_out in (("train", False), ("valid", True)):
        path = folder / f"{name}.jsonl.zst"
        aside = path.with_name(f".{path.name}.part")
        try:
            with aside.open("wb") as file, zstandard.ZstdCompressor(level=3).stream_writer(file) as stream:
                for document in gathered.documents(held_out=held_out):
                    stream.write(json.dumps(asdict(document)).encode() + b"\n")
            sync(aside)
            aside.replace(path)
        except OSError as error:
            raise CorpusError(f"cannot write {path}: {disk_problem(error)}") from error


def code_bytes(recipe: CorpusRecipe) -> int:
    """Bytes of the code files that `gather` would read, without reading them (for time estimates)."""
    return sum(source.size() for source in code_sources(recipe))


def _read_parts(
    sources: list[Source], work: Path, contamination: TaskTexts | None, processes: int, progress: Progress
) -> PartFiles:
    named = [(source, work / f"part-{number:06d}.parquet") for number, source in enumerate(sources)]
    _begin(work, sources, contamination)
    sizes = [source.size() for source in sources]
    left = [place for place, (_, path) in enumerate(named) if not path.exists()]
    done, total = sum(sizes) - sum(sizes[place] for place in left), sum(sizes)
    progress(done, total)
    number = 1 if sum(sizes[place] for place in left) < _SMALL else min(processes or cores(), len(left))
    for place, _ in zip(left, each(_write, contamination, (named[place] for place in left), number), strict=True):
        done += sizes[place]
        progress(done, total)
    return PartFiles([(source.name, path) for source, path in named])


def _write(contamination: TaskTexts | None, task: tuple[Source, Path]) -> None:
    write_part(*task, contamination)


def _begin(work: Path, sources: list[Source], contamination: TaskTexts | None) -> None:
    """Prepare the work folder: keep the parts of an interrupted run that read the same by the same code, remove all
    others."""
    whole = hashlib.sha256(f"{code_digest()}\0{contamination and contamination.identity}".encode())
    for source in sources:
        whole.update(repr(source).encode("utf-8", "surrogatepass"))
    identity = whole.hexdigest().encode()
    place = work / _IDENTITY
    if not place.exists() or place.read_bytes() != identity:
        for path in work.glob("part-*.parquet"):
            path.unlink()
        write_atomically(place, identity)
    for path in work.glob(".part-*.part"):  # of processes that were killed
        path.unlink(missing_ok=True)


def _without_duplicates(files: PartFiles, similarity: float, work: Path) -> NDArray[np.int64]:
    """Return the indices of the files that are no duplicates."""
    digests = files.array("digest", np.uint64, 2, work / "digests.npy")
    kept = _drop(files, np.arange(len(files)), ~first_copies(digests), "duplicate")
    signed = files.array("signature", np.uint32, SIGNATURE, work / "signatures.npy")[kept]
    near = near_duplicates(signed, similarity, lambda some: (files.document(int(i)).text for i in kept[some]), work)
    flags = np.zeros(len(files), dtype=bool)
    flags[kept] = near
    return _drop(files, kept, flags, "near duplicate")


def _drop(files: PartFiles, kept: NDArray[np.int64], flags: NDArray[np.bool_], reason: str) -> NDArray[np.int64]:
    for index in kept[flags[kept]].tolist():
        document = files.document(index)
        files.tallies[document.source, document.origin].drop(reason, document.name)
    return kept[~flags[kept]]


def _joined(files: PartFiles, kept: NDArray[np.int64], recipe: CorpusRecipe) -> Order:
    """Make each file a document, but join those of one repository where the recipe says so. Joined ones come last."""
    limits = {name: code.join_bytes for name, code in recipe.code.items() if code.join_bytes}
    joins = np.zeros(len(files), dtype=bool)
    for name in limits:
        joins |= files.source_is(name)
    alone = kept[~joins[kept]]
    groups: list[list[int]] = []
    if limits:
        names, repositories, imports = (files.column(column) for column in ("name", "repository", "imports"))
        sizes = files.numbers("size")
        for name, limit in limits.items():
            found: dict[str, list[File]] = defaultdict(list)
            for index in kept[files.source_is(name)[kept]].tolist():
                file = File(index, names[index].as_py(), tuple(imports[index].as_py()), int(sizes[index]))
                found[repositories[index].as_py()].append(file)
            groups += [[file.number for file in group] for some in found.values() for group in joined(some, limit)]
    lengths = [1] * len(alone) + [len(group) for group in groups]
    order = np.concatenate([alone, np.array([index for group in groups for index in group], dtype=np.int64)])
    return Order(order, np.cumsum([0, *lengths]))


def _report(files: PartFiles, gathered: Gathered, recipe: CorpusRecipe) -> Report:
    rows = {
        key: SourceReport(*key, tally.files, tally.bytes, dict(tally.dropped)) for key, tally in files.tallies.items()
    }
    origins, sizes = files.column("origin"), files.numbers("size")
    for held_out in (False, True):
        for index in gathered.files(held_out=held_out).tolist():
            row = rows[files.source(index), origins[index].as_py()]
            row.held_out += held_out
            row.kept += not held_out
            row.kept_bytes += 0 if held_out else int(sizes[index])
    whole = Tally()
    for tally in files.tallies.values():
        whole.add(tally)
    languages: set[str] = {language for code in recipe.code.values() for language in code.languages}
    return Report([rows[key] for key in sorted(rows)], whole.examples, dict(whole.redacted), unchecked(languages))


def _why_empty(files: PartFiles) -> str:
    dropped: Counter[str] = Counter()
    for tally in files.tallies.values():
        dropped.update(tally.dropped)
    why = ", ".join(f"{count} {reason}" for reason, count in dropped.most_common())
    found = f"; its files were dropped: {why}" if why else ""
    return f"the corpus has no documents: check corpus.sources, corpus.folders and corpus.code{found}"


def _batches(documents: Iterator[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    held = 0
    for document in documents:
        batch.append(document)
        held += len(document.text)
        if held >= _ENCODED:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


def _encode(shared: tuple[TextTokenizer, FillInMiddle | None], batch: list[Document]) -> list[Tokens]:
    tokenizer, middle = shared
    encoded = list(tokenizer.documents(document.text for document in batch))
    if middle is not None:
        encoded = [middle.moved(document, ids, tokenizer) for document, ids in zip(batch, encoded, strict=True)]
    return [
        Tokens(np.array(ids, dtype=np.uint32), document.kind, document.source)
        for document, ids in zip(batch, encoded, strict=True)
    ]
