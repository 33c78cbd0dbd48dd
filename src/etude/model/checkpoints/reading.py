"""Build networks from checkpoints, and check what checkpoints store.

Invariant: a network is built tensor by tensor in its own memory, so that loading takes that and one tensor more. All
tensors that are read are checked for faults as they are stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from etude.model.checkpoints.folder import CheckpointFolder, weights_digest
from etude.model.checkpoints.peft import CONFIG, WEIGHTS, AdapterFolder
from etude.model.checkpoints.slots import slots_of, without_memory
from etude.model.checkpoints.survey import require_fit, with_heads_of
from etude.model.config import ModelConfig
from etude.model.families import FAMILIES
from etude.model.precision.formats import Quantised, dequantise
from etude.model.precision.layout import is_ignored, parts_of_quantised, quantised_of, refuse_codes
from etude.model.precision.weight_checks import Fault, doubts, faults, faults_of_values, refuse_faults
from etude.model.transformer import Transformer

_EMBEDDING = "embed_tokens.weight"


def load_hf(
    folder: Path | str,
    dtype: torch.dtype | None = None,
    *,
    mtp_heads: int | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> Transformer:
    """Build a network from a checkpoint folder, or from a folder with adapters: then the network is their base, frozen,
    with the adapters attached.

    With `dtype` None, plain weights keep their stored dtype and quantised ones get config.json's. Buffers are fp32.
    `mtp_heads` is the number of MTP heads; None means those of the folder. More heads than it has are added, random by
    `seed` and their names. Weights that are not finite or were clipped raise
    PoisonedWeights; a checkpoint that does not fit raises UnsupportedCheckpoint before any tensor is read.
    """
    adapters = AdapterFolder.open(folder)
    opened = adapters.base if adapters else CheckpointFolder.open(folder)
    config = adapters.config if adapters else opened.config
    if mtp_heads is not None:
        config = replace(config, num_nextn_predict_layers=mtp_heads)
    require_fit(opened, with_heads_of(opened, config))
    weights = _Weights(opened, dtype or opened.dtype)
    config = _tied_as_stored(weights, config)
    model = without_memory(config)
    buffers = {name for name, _ in model.named_buffers()}
    slots, dtypes = slots_of(without_memory(with_heads_of(opened, config))), dict[str, torch.dtype]()
    for name, slot in slots.items():
        stored = torch.float32 if slot.parameter in buffers else dtype or weights.dtype_of(name)
        dtypes[slot.parameter] = torch.promote_types(stored, dtypes.get(slot.parameter, stored))
    names = FAMILIES[config.family].names
    added = model.state_dict().keys() - dtypes.keys()
    for name in added:
        dtypes[name] = torch.float32 if name in buffers else dtypes[_EMBEDDING]
    state = {
        name: torch.empty(meta.shape, dtype=dtypes[name], device=device) for name, meta in model.state_dict().items()
    }
    for name, slot in slots.items():
        whole = state[slot.parameter]
        out = whole if slot.expert is None else whole[slot.expert]
        if name == names.embedding and config.embedding_scale != 1:
            _read_unscaled(weights, config, out)
        else:
            weights.read_into(name, out)
    weights.refuse_faults(f"{folder} is not loaded")
    model.load_state_dict(state, assign=True)
    model.initialise(seed, added)
    model.origin = opened.path
    if adapters:
        adapters.attach_to(model, dtype)
    return model


def checkpoint_digest(folder: Path) -> str:
    """Return the SHA-256 of a checkpoint's weights; of adapters, of their settings, matrices and base together."""
    adapters = AdapterFolder.open(folder)
    if adapters is None:
        return weights_digest(folder)
    whole = hashlib.sha256(weights_digest(adapters.base.path).encode())
    for name in (CONFIG, WEIGHTS):
        whole.update((folder / name).read_bytes())
    return whole.hexdigest()


def load_codes(folder: Path | str) -> dict[str, Quantised]:
    """Return the quantised weights of a checkpoint as codes and scales, by published name."""
    weights = _Weights(_base_folder(folder))
    return {name: weights.quantised(name) for name in weights.parts}


def checkpoint_faults(folder: Path | str) -> list[Fault]:
    """Return a `Fault` for every stored tensor that is not finite or was clipped; if there is none, for every quantised
    weight that is not finite once dequantised. Those of adapters come before those of their base."""
    adapters = AdapterFolder.open(folder)
    weights = _Weights(adapters.base if adapters else CheckpointFolder.open(folder))
    for name in weights.names():
        weights.read(name)
    return [*(adapters.faults() if adapters else ()), *weights.faults()]


def checkpoint_doubts(folder: Path | str) -> list[Fault]:
    """Return a `Fault` for every weight that may have been clipped when the checkpoint was quantised."""
    weights = _Weights(_base_folder(folder))
    return [fault for name in weights.parts for fault in doubts({name: weights.quantised(name)})]


def _base_folder(folder: Path | str) -> CheckpointFolder:
    adapters = AdapterFolder.open(folder)
    return adapters.base if adapters else CheckpointFolder.open(folder)


class _Weights:
    """The weights of a checkpoint by published name, quantised or not. Remembers the faults of all that it reads."""

    def __init__(self, opened: CheckpointFolder, dtype: torch.dtype | None = None) -> None:
        self.parts = parts_of_quantised(opened.stored)
        """The names of the tensors of each quantised weight."""
        self._opened, self._dtype = opened, dtype or opened.dtype
        self._of_stored: list[Fault] = []
        self._of_values: list[Fault] = []

    def names(self) -> Iterator[str]:
        taken = {name for names in self.parts.values() for name in names.values()}
        yield from self.parts
        yield from (name for name in self._opened.stored if name not in taken and not is_ignored(name))

    def dtype_of(self, name: str) -> torch.dtype:
        return self._dtype if name in self.parts else self._opened.stored[name].dtype

    def read_into(self, name: str, out: Tensor) -> None:
        """Read a weight into `out`, which may have another dtype and device."""
        direct = name not in self.parts and self._opened.stored[name].dtype == out.dtype and out.device.type == "cpu"
        if direct:
            self._opened.read_into(name, out)
            self._of_stored += faults({name: out})
        else:
            out.copy_(self.read(name))

    def read(self, name: str) -> Tensor:
        if name not in self.parts:
            refuse_codes(name, self._opened.stored[name].dtype)
            tensor = self._opened.tensor(name)
            self._of_stored += faults({name: tensor})
            return tensor
        value = dequantise(self.quantised(name), self._dtype)
        self._of_values += faults_of_values([(name, value)])
        return value

    def quantised(self, name: str) -> Quantised:
        tensors = {part: self._opened.tensor(stored) for part, stored in self.parts[name].items()}
        self._of_stored += faults({self.parts[name][part]: tensor for part, tensor in tensors.items()})
        return quantised_of(name, tensors)

    def faults(self) -> list[Fault]:
        return sorted(set(self._of_stored or self._of_values), key=lambda fault: fault.where)

    def refuse_faults(self, refusal: str) -> None:
        refuse_faults(self.faults(), refusal)


def _tied_as_stored(weights: _Weights, config: ModelConfig) -> ModelConfig:
    """Return the configuration, but untied and without embedding scale if the network was tied and its stored embedding
    no longer is the scaled head: another tool has then trained the two apart."""
    if config.embedding_scale == 1 or not config.tie_word_embeddings:
        return config
    names = FAMILIES[config.family].names
    if torch.equal(weights.read(names.head) * config.embedding_scale, weights.read(names.embedding)):
        return config
    return replace(config, tie_word_embeddings=False, embedding_scale=1.0)


def _read_unscaled(weights: _Weights, config: ModelConfig, out: Tensor) -> None:
    """Read the embedding without the scale that is folded into the stored one. The head of a tied network is that."""
    names = FAMILIES[config.family].names
    if config.tie_word_embeddings:
        weights.read_into(names.head, out)
    else:
        out.copy_(weights.read(names.embedding) / config.embedding_scale)
