"""Runs datatrove on the corpus benchmark's files; started by `corpus.py` in a separate virtual environment.

Arguments: the folder of .jsonl files, a folder to write to, our `src`, and the MinHash settings as JSON. The last line
of standard output is JSON: seconds of CPU time without imports, and the numbers of the documents that are kept.

One process, so that nothing is spent on starting others. Filters and redaction are our own functions, called for each
document. Words for MinHash are cut by one regular expression, the same as ours: its own word tokenizers are many times
slower. Texts are written once between the steps, uncompressed.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import sys
import time
import types
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import (
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
)
from datatrove.pipeline.filters import LambdaFilter
from datatrove.pipeline.formatters.base import BaseFormatter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers.jsonl import JsonlWriter
from datatrove.utils.hashing import HashConfig
from datatrove.utils.text import TextNormConfig
from datatrove.utils.word_tokenizers import WordTokenizer
from loguru import logger


class Words(WordTokenizer):
    _word = re.compile(r"\w+|[^\w\s]")

    def word_tokenize(self, text: str) -> list[str]:
        return self._word.findall(text)

    def sent_tokenize(self, text: str) -> list[str]:
        raise NotImplementedError

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        raise NotImplementedError


class Redaction(BaseFormatter):
    name = "redaction"

    def __init__(self, redact: Callable[[str, Counter[str]], str]) -> None:
        super().__init__()
        self.redact, self.counts = redact, Counter[str]()

    def format(self, text: str) -> str:
        return self.redact(text, self.counts)


def open_ours(source: Path) -> tuple[Any, Any]:
    """Return our modules of filters and redaction. Their packages are left empty, since these import what is not
    installed here."""
    for package in ("etude", "etude.corpus", "etude.corpus.cleaning", "etude.trace"):
        sys.modules[package] = module = types.ModuleType(package)
        module.__path__ = [str(source / package.replace(".", "/"))]
    names = ("generated_code", "redaction")
    filters, redaction = (importlib.import_module(f"etude.corpus.cleaning.{name}") for name in names)
    return filters, redaction


def main(texts: Path, folder: Path, source: Path, settings: dict[str, Any]) -> None:
    logger.remove()
    ours, redaction = open_ours(source)
    largest, smallest = settings["max_bytes"], settings["min_bytes"]

    def is_kept(document: Document) -> bool:
        text = document.text
        if not smallest <= len(text) <= largest:
            return False
        return not (
            ours.is_marked(text) or ours.is_minified(text) or ours.is_table(text) or ours.has_few_letters(text)
        ) and parses(text)

    config = MinhashConfig(
        n_grams=settings["shingle"],
        num_buckets=settings["bands"],
        hashes_per_bucket=settings["rows"],
        # Case and signs matter in code, and normalising costs time.
        norm_config=TextNormConfig(
            lowercase=False,
            norm_whitespace=False,
            remove_punctuation=False,
            norm_unicode_diacritics=False,
            norm_numbers=False,
        ),
        hash_config=HashConfig(precision=64, hash_fc="xxhash"),
    )
    place = str(folder)
    steps = [
        [
            JsonlReader(str(texts), text_key="content", id_key="number"),
            LambdaFilter(is_kept),
            Redaction(redaction.without_secrets),
            JsonlWriter(f"{place}/cleaned", output_filename="${rank}.jsonl", compression=None),
            MinhashDedupSignature(f"{place}/signatures", config=config, language=Words()),
        ],
        [MinhashDedupBuckets(f"{place}/signatures", f"{place}/buckets", config=config)],
        [MinhashDedupCluster(f"{place}/buckets", f"{place}/removed", config=config)],
        [
            JsonlReader(f"{place}/cleaned"),
            MinhashDedupFilter(f"{place}/removed"),
            JsonlWriter(f"{place}/kept", output_filename="${rank}.jsonl", compression=None),
        ],
    ]
    begun = time.process_time()
    for number, step in enumerate(steps):
        tasks = config.num_buckets if number == 1 else 1
        LocalPipelineExecutor(step, tasks=tasks, workers=1, logging_dir=f"{place}/logs/{number}").run()
    seconds = time.process_time() - begun
    kept = [json.loads(line)["id"] for path in Path(place, "kept").iterdir() for line in path.open()]
    print(json.dumps({"seconds": seconds, "kept": kept}))


def parses(text: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for flags in (0, ast.PyCF_ONLY_AST):
            try:
                compile(text, "<text>", "exec", flags, dont_inherit=True)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                continue
            return True
    return False


if __name__ == "__main__":
    os.environ["TQDM_DISABLE"] = "1"
    main(*map(Path, sys.argv[1:4]), json.loads(sys.argv[4]))
