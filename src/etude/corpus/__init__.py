"""Builds the training corpus from code to token shards (collect, deduplicate, hold out, shard) and batches from shards
(mix, pack). Needs no torch.

Batches are pure functions of (seed, step), so a run can resume at any step without a saved position.
"""

from etude.corpus.build import Gathered, Provenance, code_bytes, gather, write_corpus
from etude.corpus.collect import Document
from etude.corpus.dedup import near_duplicates, normalised_digest, same_text
from etude.corpus.errors import CorpusError
from etude.corpus.mix import LOOKUP, Mixture, RowStream, mixture
from etude.corpus.pack import Batch, Row, RowPlan, plan_rows
from etude.corpus.sft import TraceRows, hold_out
from etude.corpus.shards import Corpus, Shards, open_corpus, write_shards

__all__ = [
    "LOOKUP",
    "Batch",
    "Corpus",
    "CorpusError",
    "Document",
    "Gathered",
    "Mixture",
    "Provenance",
    "Row",
    "RowPlan",
    "RowStream",
    "Shards",
    "TraceRows",
    "code_bytes",
    "gather",
    "hold_out",
    "mixture",
    "near_duplicates",
    "normalised_digest",
    "open_corpus",
    "plan_rows",
    "same_text",
    "write_corpus",
    "write_shards",
]
