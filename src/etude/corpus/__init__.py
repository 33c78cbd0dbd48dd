"""Builds the training corpus from code to token shards (read, clean, deduplicate, hold out, shard) and batches from
shards (mix, pack). Needs no torch.

Batches are pure functions of (seed, step), so a run can resume at any step without a saved position.
"""

from etude.corpus.build import Gathered, code_bytes, gather, write_corpus, write_texts
from etude.corpus.dedup import normalised_digest
from etude.corpus.document import Document
from etude.corpus.errors import CorpusError
from etude.corpus.mix import LOOKUP, Mixture, RowStream, mixture
from etude.corpus.pack import Batch, Row, RowPlan, plan_rows
from etude.corpus.part_files import TaskTexts
from etude.corpus.report import Report
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
    "Report",
    "Row",
    "RowPlan",
    "RowStream",
    "Shards",
    "TaskTexts",
    "TraceRows",
    "code_bytes",
    "gather",
    "hold_out",
    "mixture",
    "normalised_digest",
    "open_corpus",
    "plan_rows",
    "write_corpus",
    "write_shards",
    "write_texts",
]
