"""Write networks as checkpoints.

Invariant: a written checkpoint has exactly the published format, so that any tool computes the same function from it,
and reading it back gives the same network. config.json is written last, so that an interrupted write is never taken
for a checkpoint. An embedding scale is folded into the written embedding, and a tied network is then written untied.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from etude.journal.files import sync, write_atomically
from etude.model.adapters import adapters_of
from etude.model.checkpoints.folder import HEADS, INDEX, SINGLE, CheckpointFolder, file_in
from etude.model.checkpoints.slots import slots_of
from etude.model.checkpoints.tensor_file import write_tensors
from etude.model.errors import ModelError
from etude.model.families import FAMILIES, write_config
from etude.model.precision.formats import dequantise
from etude.model.precision.layout import quantise_experts, split_quantised
from etude.model.precision.weight_checks import faults_of_values, refuse_faults, require_no_faults
from etude.model.transformer import Transformer

SHARD_BYTES = 5 << 30
TRAVELLING = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "tiktoken.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)
"""Files beside the weights that a network needs wherever it goes."""
BESIDE = ("*.py", "*processor_config.json")
"""Files of the parts of a larger model that are not the network: their code, which is never run here, and settings."""
_WEIGHTS = re.compile(r"(model(-\d{5}-of-\d{5})?|mtp)\.safetensors(\.index\.json)?")


def save_hf(
    model: Transformer,
    folder: Path | str,
    source: Path | str | None = None,
    *,
    experts: str | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write the network as config.json and model.safetensors, or shards of about `shard_bytes` with an index.

    MTP heads that the family does not publish get a file of their own. The files of `source` that belong to a tokenizer
    or say how to generate travel along, as do tensors and files of `model.origin` that are not the network's. Weights
    that are not finite or were clipped raise PoisonedWeights before anything is written. `experts` is the storage
    format of the routed experts' weights, one of `precision.STORED`; None keeps their dtype.
    """
    if adapters_of(model):
        raise ModelError("the network has adapters: merge them first, or write them alone with save_adapter")
    folder = Path(folder)
    tensors = _published_tensors(model)
    family = FAMILIES[model.config.family]
    dtype = tensors[family.names.embedding].dtype
    config = _with_dtype(write_config(model.config), str(dtype).removeprefix("torch."), family.section)
    require_no_faults(tensors, f"{folder} is not written")
    tensors |= _carried(model)
    if experts is not None:
        tensors, config["quantization_config"] = quantise_experts(tensors, experts)
        values = ((name, dequantise(q, dtype)) for name, q in sorted(split_quantised(tensors)[1].items()))
        refuse_faults(faults_of_values(values), f"{folder} is not written")
    folder.mkdir(parents=True, exist_ok=True)
    apart = {name for name in tensors if name.startswith("mtp.")}
    shards = _shards({name: tensor for name, tensor in tensors.items() if name not in apart}, shard_bytes)
    _write_weights(folder, shards, {name: tensors[name] for name in tensors if name in apart})
    for carried in files_carried(model.origin, model.config.family) if model.origin is not None else ():
        write_atomically(folder / carried.name, carried.read_bytes())
    copy_travelling(source, folder)
    write_atomically(folder / "config.json", (json.dumps(config, indent=2) + "\n").encode())


def copy_travelling(source: Path | str | None, folder: Path) -> None:
    """Copy the files of TRAVELLING that `source` has; None, or the folder itself, has none to copy."""
    if source is None or Path(source).resolve() == folder.resolve():
        return
    for name in TRAVELLING:
        if (file := file_in(Path(source), name)) is not None:
            write_atomically(folder / name, file.read_bytes())


def _published_tensors(model: Transformer) -> dict[str, Tensor]:
    """Return every tensor of the network under its published name. Almost all are views of the network's memory."""
    state, config = model.state_dict(), model.config
    tensors: dict[str, Tensor] = {}
    for name, slot in slots_of(model).items():
        whole = state[slot.parameter].detach()
        tensors[name] = whole if slot.expert is None else whole[slot.expert]
    names = FAMILIES[config.family].names
    head = tensors.get(names.head, tensors[names.embedding])
    if config.embedding_scale != 1:
        tensors |= {names.head: head, names.embedding: tensors[names.embedding] * config.embedding_scale}
    originals = {names.embedding: tensors[names.embedding], names.head: head}
    return tensors | {name: originals[original] for name, original in names.copies(config).items()}


def _carried(model: Transformer) -> dict[str, Tensor]:
    """Return the tensors beside the network that are in the checkpoint from which it was loaded."""
    beginnings = FAMILIES[model.config.family].names.carried
    if model.origin is None or not beginnings:
        return {}
    opened = CheckpointFolder.open(model.origin)
    return {name: opened.tensor(name) for name in opened.stored if name.startswith(beginnings)}


def files_carried(folder: Path, family: str) -> list[Path]:
    """Return the files of a checkpoint that belong to what it holds beside the network, where its family has that."""
    if not FAMILIES[family].names.carried:
        return []
    found = sorted({path.name for pattern in BESIDE for path in folder.glob(pattern)})
    return [file for name in found if (file := file_in(folder, name)) is not None]


def _with_dtype(config: dict[str, Any], dtype: str, section: str) -> dict[str, Any]:
    """Say in a config.json which dtype the weights have, under the name that it already has for that."""
    if section:
        inner = config[section]
        config = config | {section: inner | dict.fromkeys(inner.keys() & {"dtype", "torch_dtype"}, dtype)}
    return config | dict.fromkeys(config.keys() & {"dtype"} or {"torch_dtype"}, dtype)


def _shards(tensors: Mapping[str, Tensor], most: int) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of each file by the file's name, in the order given. A tensor is never split."""
    shards, size = [dict[str, Tensor]()], 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.nbytes > most:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    if len(shards) == 1:
        return {SINGLE: shards[0]}
    return {f"model-{i:05d}-of-{len(shards):05d}.safetensors": shard for i, shard in enumerate(shards, 1)}


def _write_weights(folder: Path, shards: Mapping[str, dict[str, Tensor]], apart: dict[str, Tensor]) -> None:
    """Write the files with the tensors, and an index if there are several. The heads `apart` get a file that it does
    not list. Remove the files of an earlier write."""
    files = {**shards, **({HEADS: apart} if apart else {})}
    partial = {name: folder / f"{name}.partial" for name in files}
    try:
        for name, tensors in files.items():
            write_tensors(partial[name], tensors)
    except BaseException:
        for file in partial.values():
            with suppress(OSError):  # the first error is the one to report
                file.unlink(missing_ok=True)
        raise
    former = {path.name for path in folder.iterdir() if _WEIGHTS.fullmatch(path.name)}
    if {SINGLE} != former | files.keys():
        # Several files cannot be replaced at once; without config.json no mixture of them is taken for a checkpoint.
        (folder / "config.json").unlink(missing_ok=True)
        sync(folder)
    for name, file in partial.items():
        file.replace(folder / name)
    for name in former - files.keys():
        (folder / name).unlink()
    if len(files) > 1:
        places = {name: file for file, tensors in shards.items() for name in tensors}
        total = sum(tensor.nbytes for tensors in shards.values() for tensor in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": places}
        write_atomically(folder / INDEX, (json.dumps(index, indent=2) + "\n").encode())
