"""`survey` tells from a checkpoint's headers alone what it holds, and what keeps a network from being built from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from etude.model.checkpoints.folder import CheckpointFolder
from etude.model.checkpoints.peft import AdapterFolder
from etude.model.checkpoints.slots import Slot, slots_of, without_memory
from etude.model.config import ModelConfig
from etude.model.errors import UnsupportedCheckpoint
from etude.model.families import FAMILIES
from etude.model.precision.layout import is_ignored, packed_shape, parts_of_quantised
from etude.model.precision.weight_checks import PLAIN
from etude.model.size import Parameters, parameters_of

_COMPUTED = ".rotary_emb.inv_freq"
"""Ending of tensors that old checkpoints store although they follow from config.json."""


@dataclass(frozen=True, slots=True)
class Survey:
    config: ModelConfig
    parameters: Parameters
    bytes: int
    """Total bytes of the stored tensors."""
    dtype: torch.dtype
    quantised: str | None
    """config.json's quantisation method; None if the weights are not quantised."""
    weights: bool
    """Whether there are any tensors, and not only a config.json."""
    stored_heads: int
    """Number of MTP heads that config.json says the folder has."""
    unread: tuple[str, ...]
    """Names of files with weights that do not count."""
    problems: tuple[str, ...]
    """Everything that keeps the network from being built, as the rest of a sentence that begins with the folder."""


def survey(
    folder: Path | str,
    *,
    mtp_heads: int | None = None,
    dtype: torch.dtype | None = None,
    vocabulary: int | None = None,
    room: int | None = None,
) -> Survey:
    """Look at a checkpoint folder, or at one with adapters and at their base, without reading any tensor.

    `vocabulary` is the number of token ids that the tokenizer to be used can give, `room` the bytes of memory that the
    network may take in the dtype `dtype`; None checks neither. Raises UnsupportedCheckpoint where there is nothing to
    tell: the family is unknown, or a file is damaged. MTP heads beyond those of the folder are added when it is loaded.
    """
    adapters = AdapterFolder.open(folder)
    opened = adapters.base if adapters else CheckpointFolder.open(folder)
    config = adapters.config if adapters else opened.config
    if mtp_heads is not None:
        config = replace(config, num_nextn_predict_layers=mtp_heads)
    parameters, dtype = parameters_of(config), dtype or opened.dtype
    problems = [*tensor_problems(opened, with_heads_of(opened, config))] if opened.stored else [*_pickled(opened)]
    if adapters and (problem := adapters.problem()):
        problems.append(problem)
    if vocabulary is not None and vocabulary > config.vocab_size:
        problems.append(f"knows {config.vocab_size} tokens, but the tokenizer has {vocabulary}")
    if room is not None and (size := parameters.total * dtype.itemsize) > room:
        said = f"takes {size / 1e9:.1f} GB in {str(dtype).removeprefix('torch.')}"
        problems.append(f"{said}, but there is room for {room / 1e9:.1f} GB")
    return Survey(
        config=config,
        parameters=parameters,
        bytes=sum(tensor.bytes for tensor in opened.stored.values()),
        dtype=opened.dtype,
        quantised=opened.quantised,
        weights=bool(opened.stored),
        stored_heads=opened.config.num_nextn_predict_layers,
        unread=opened.unread,
        problems=tuple(problems),
    )


def require_fit(opened: CheckpointFolder, config: ModelConfig) -> None:
    """Raise UnsupportedCheckpoint if the network cannot be built from the stored tensors."""
    if not opened.stored:
        raise UnsupportedCheckpoint(
            f"{opened.path} {next(_pickled(opened), 'is not a checkpoint: it has no .safetensors file')}"
        )
    if problems := list(tensor_problems(opened, config)):
        raise UnsupportedCheckpoint(f"{opened.path} {'; '.join(problems)}")


def with_heads_of(opened: CheckpointFolder, config: ModelConfig) -> ModelConfig:
    """Return the configuration without the MTP heads that the folder does not have."""
    heads = min(config.num_nextn_predict_layers, opened.config.num_nextn_predict_layers)
    return replace(config, num_nextn_predict_layers=heads)


def as_stored(config: ModelConfig) -> ModelConfig:
    """Return the configuration of the network whose tensors a checkpoint stores: an embedding scale is folded into the
    embedding, which unties it from the head."""
    return config if config.embedding_scale == 1 else replace(config, tie_word_embeddings=False)


def tensor_problems(opened: CheckpointFolder, config: ModelConfig) -> Iterator[str]:
    """Yield one line for the tensors that are missing, one for those too many, and one for those of another shape."""
    needed = slots_of(without_memory(as_stored(config)))
    parts = parts_of_quantised(opened.stored)
    scales_and_codes = {name for names in parts.values() for name in names.values()}
    found = parts.keys() | {name for name in opened.stored if name not in scales_and_codes and not is_ignored(name)}
    if missing := [name for name in needed if name not in found]:
        only_mtp = all(needed[name].parameter.startswith("mtp.") for name in missing)
        hint = "; to do without its MTP heads, set mtp_heads = 0" if only_mtp else ""
        yield _line("lacks", missing) + hint
    if extra := [name for name in sorted(found - needed.keys() - _copies(opened.config)) if _counts(name, opened)]:
        yield _line("has", extra, " that the network does not have")
    for name in sorted(found & needed.keys()):
        if problem := _misfit(name, needed[name], opened, parts.get(name)):
            yield problem
            return


def _line(verb: str, names: Sequence[str], rest: str = "") -> str:
    if len(names) == 1:
        return f"{verb} the tensor {names[0]}{rest}"
    return f"{verb} {len(names)} tensors{rest}, first {names[0]}"


def _copies(config: ModelConfig) -> set[str]:
    """Return the names of tensors that a folder may have although a network is built without them: copies of others,
    and all of MTP heads that were not asked for."""
    names = FAMILIES[config.family].names
    return {names.head} | slots_of(without_memory(config)).keys() | names.copies(config).keys()


def _counts(name: str, opened: CheckpointFolder) -> bool:
    """Whether a tensor says anything of the network: it is not empty, as those of an expert without width, cannot be
    computed, and does not only travel along."""
    stored, carried = opened.stored.get(name), FAMILIES[opened.config.family].names.carried
    return not name.startswith(carried) and (stored is None or stored.bytes > 0) and not name.endswith(_COMPUTED)


def _misfit(name: str, slot: Slot, opened: CheckpointFolder, parts: Mapping[str, str] | None) -> str | None:
    """Return what is wrong with a tensor's shape or dtype, None if nothing is."""
    if parts is not None and "codes" not in parts:
        return f"{name} lacks its codes"
    stored = opened.stored[name if parts is None else parts["codes"]]
    if parts is None and stored.dtype not in PLAIN:
        return f"{name} is {stored.dtype}, but has no scales of a known format"
    expected = slot.shape if parts is None else packed_shape(slot.shape, stored.dtype)
    return None if stored.shape == expected else f"{name} has shape {stored.shape}, config.json says {expected}"


def _pickled(opened: CheckpointFolder) -> Iterator[str]:
    if opened.unread:
        yield f"holds no .safetensors file, only {opened.unread[0]}: save it as safetensors"
