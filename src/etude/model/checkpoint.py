"""Read and write Hugging Face checkpoints of the published families.

Invariant: a written checkpoint has exactly the published format, so that any tool computes the same function from it,
and reading it back gives the same network. The file differs from the network in memory in two respects:
- The file has published names and one tensor per expert, the network one stacked tensor per layer (families/names.py).
- An embedding scale is folded into the written embedding, and a tied network is then written untied. Loading ties it
  again if embedding and head still match; if another tool trained them separately, it stays untied.

Quantised weights (see `precision/layout.py`) are dequantised to the compute dtype when a network is built from them;
`load_codes` returns them as codes and scales. Only the routed experts can be written quantised.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from etude.journal.files import sync, write_atomically
from etude.model.config import ModelConfig
from etude.model.errors import UnsupportedCheckpoint
from etude.model.families import FAMILIES, read_config, write_config
from etude.model.families.names import EMBEDDING, HEAD
from etude.model.precision.formats import Quantised, dequantise
from etude.model.precision.layout import quantise_experts, refuse_unknown, split_quantised
from etude.model.precision.weight_checks import (
    Fault,
    doubts,
    faults,
    faults_of_values,
    refuse_faults,
    require_no_faults,
)
from etude.model.transformer import Transformer

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def save_hf(
    model: Transformer, folder: Path | str, tokenizer_file: Path | str | None = None, *, experts: str | None = None
) -> None:
    """Write the network as model.safetensors and config.json.

    config.json is written last, so that an interrupted write is never taken for a checkpoint. Weights that are not
    finite or were clipped raise PoisonedWeights before anything is written. `experts` is the storage format of the
    routed experts' weights, one of `precision.STORED`; None keeps their dtype.
    """
    folder = Path(folder)
    tensors = published_tensors(model)
    config = {**write_config(model.config), "torch_dtype": str(tensors[EMBEDDING].dtype).removeprefix("torch.")}
    require_no_faults(tensors, f"{folder} is not written")
    if experts is not None:
        stored_dtype = tensors[EMBEDDING].dtype
        tensors, config["quantization_config"] = quantise_experts(tensors, experts)
        values = _values(split_quantised(tensors)[1], stored_dtype)
        refuse_faults(faults_of_values(values), f"{folder} is not written")
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / "model.safetensors.partial"
    save_file(tensors, weights, metadata={"format": "pt"})
    sync(weights)
    weights.replace(folder / "model.safetensors")
    if tokenizer_file is not None and Path(tokenizer_file).resolve() != (folder / "tokenizer.json").resolve():
        write_atomically(folder / "tokenizer.json", Path(tokenizer_file).read_bytes())
    write_atomically(folder / "config.json", (json.dumps(config, indent=2) + "\n").encode())


def load_hf(folder: Path | str, dtype: torch.dtype | None = None, *, mtp_heads: int | None = None) -> Transformer:
    """Build a network from a checkpoint folder.

    With `dtype` None, plain weights keep their stored dtype and quantised ones get config.json's torch_dtype.
    `mtp_heads` is the number of MTP heads to load; None loads all. Weights that are not finite or were clipped raise
    PoisonedWeights.
    """
    folder = Path(folder)
    config, stored, stored_dtype = _read(folder)
    tensors, quantised = split_quantised(stored)
    require_no_faults(stored, f"{folder} is not loaded")
    values = dict(_values(quantised, dtype or stored_dtype))
    refuse_faults(faults_of_values(values.items()), f"{folder} is not loaded")
    tensors |= values
    if mtp_heads is not None:
        config = dataclasses.replace(config, num_nextn_predict_layers=mtp_heads)
    config = _unfold_embedding(config, tensors)
    with torch.device("meta"):
        model = Transformer(config)
    state = {name: _take(name, target, tensors, config, folder) for name, target in model.state_dict().items()}
    for name, tensor in state.items():
        if tensor.shape != model.state_dict()[name].shape:
            expected = tuple(model.state_dict()[name].shape)
            raise UnsupportedCheckpoint(
                f"{folder}: {name} has shape {tuple(tensor.shape)}, config.json says {expected}"
            )
    model.load_state_dict(state, assign=True)
    return model if dtype is None else model.to(dtype)


def load_codes(folder: Path | str) -> dict[str, Quantised]:
    """Return the quantised weights of a checkpoint as codes and scales, by published name."""
    return split_quantised(_read(Path(folder))[1])[1]


def checkpoint_faults(folder: Path | str) -> list[Fault]:
    """Return a `Fault` for every stored tensor that is not finite or was clipped; if there is none, for every quantised
    weight that is not finite once dequantised."""
    _, stored, dtype = _read(Path(folder))
    return faults(stored) or faults_of_values(_values(split_quantised(stored)[1], dtype))


def checkpoint_doubts(folder: Path | str) -> list[Fault]:
    """Return a `Fault` for every weight that may have been clipped when the checkpoint was quantised."""
    return doubts(load_codes(folder))


def published_tensors(model: Transformer) -> dict[str, Tensor]:
    """Return every tensor of the network under its published name, on the CPU."""
    config, tensors = model.config, dict[str, Tensor]()
    names = FAMILIES[config.family].names
    for name, value in model.state_dict().items():
        tensor = value.detach().cpu().contiguous()
        public = names.published(name, config)
        singles = names.of_experts(public, len(tensor))
        tensors |= {public: tensor} if singles is None else dict(zip(singles, map(torch.clone, tensor), strict=True))
    head = tensors.get(HEAD, tensors[EMBEDDING])
    if config.embedding_scale != 1:
        tensors[HEAD] = head.clone()
        tensors[EMBEDDING] = tensors[EMBEDDING] * config.embedding_scale
    originals = {EMBEDDING: tensors[EMBEDDING], HEAD: head}
    return tensors | {name: originals[original].clone() for name, original in names.copies(config).items()}


def _values(quantised: dict[str, Quantised], dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yield the dequantised weights one at a time, because all together take several times the memory of the codes."""
    return ((name, dequantise(q, dtype)) for name, q in sorted(quantised.items()))


def _take(name: str, target: Tensor, tensors: dict[str, Tensor], config: ModelConfig, folder: Path) -> Tensor:
    """Return the stored value of a parameter; routed experts are stacked from one tensor per expert."""
    names = FAMILIES[config.family].names
    public = names.published(name, config)
    try:
        singles = names.of_experts(public, len(target))
        if singles is not None:
            return torch.stack([tensors[single] for single in singles])
        tensor = tensors[public]
    except KeyError as missing:
        hint = "; without its MTP heads it loads with mtp_heads=0" if name.startswith("mtp.") else ""
        raise UnsupportedCheckpoint(f"{folder} lacks the tensor {missing}{hint}") from missing
    return tensor.to(torch.float32) if name.endswith("e_score_correction_bias") else tensor


def _unfold_embedding(config: ModelConfig, tensors: dict[str, Tensor]) -> ModelConfig:
    """Divide the stored embedding by the embedding scale, in place, and return the configuration. If embedding and head
    of a tied network no longer match, divide nothing and return the configuration untied, with scale 1."""
    if config.embedding_scale == 1 or HEAD not in tensors or EMBEDDING not in tensors:
        return config
    if config.tie_word_embeddings:
        if torch.equal(tensors[HEAD] * config.embedding_scale, tensors[EMBEDDING]):
            tensors[EMBEDDING] = tensors[HEAD]
            return config
        return dataclasses.replace(config, tie_word_embeddings=False, embedding_scale=1.0)
    tensors[EMBEDDING] = tensors[EMBEDDING] / config.embedding_scale
    return config


def _read(folder: Path) -> tuple[ModelConfig, dict[str, Tensor], torch.dtype]:
    tensors: dict[str, Tensor] = {}
    try:
        data: dict[str, Any] = json.loads((folder / "config.json").read_text())
        for part in sorted(folder.glob("*.safetensors")):
            tensors.update(load_file(part))
    except FileNotFoundError as missing:
        raise UnsupportedCheckpoint(f"{folder} is not a checkpoint: it has no config.json") from missing
    except (json.JSONDecodeError, SafetensorError) as damaged:
        raise UnsupportedCheckpoint(f"{folder} is damaged: {damaged}") from damaged
    if not tensors:
        raise UnsupportedCheckpoint(f"{folder} is not a checkpoint: it has no .safetensors file")
    refuse_unknown(data.pop("quantization_config", None))
    dtype = _DTYPES.get(str(data.get("dtype") or data.get("torch_dtype")), torch.bfloat16)
    return read_config(data), tensors, dtype
