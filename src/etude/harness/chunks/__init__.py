"""Code search by words and by meaning: files are split into chunks, which are ranked by BM25 and, with an embedder, by
embedding vectors.

The search runs in the harness's process, on the files of any workspace; a box only delivers its files.
"""

from etude.harness.chunks.chosen_embedder import usual_embedder
from etude.harness.chunks.chunk import Chunk, chunks_of
from etude.harness.chunks.embedder import Embedder, EmbeddingFailed, EndpointEmbedder
from etude.harness.chunks.index import ChunkIndex, Found, TooManyFiles
from etude.harness.chunks.shipped_embedder import ShippedEmbedder
from etude.harness.chunks.vectors import VectorStore

__all__ = [
    "Chunk",
    "ChunkIndex",
    "Embedder",
    "EmbeddingFailed",
    "EndpointEmbedder",
    "Found",
    "ShippedEmbedder",
    "TooManyFiles",
    "VectorStore",
    "chunks_of",
    "usual_embedder",
]
