"""`CheckpointFolder`, what a folder in the Hugging Face format holds, found without reading any tensor.

Which files count: those that the index lists; without an index `model.safetensors`; without that all .safetensors
files. Every file is a regular file in the folder, or a link to one in the folder or in the `blobs` folder of the
Hugging Face cache to which the folder belongs. Pickles are never opened.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from etude.model.checkpoints.tensor_file import StoredTensor, read_header, read_into, read_json_file
from etude.model.config import ModelConfig
from etude.model.errors import UnsupportedCheckpoint
from etude.model.families import FAMILIES, read_config, without_quantisation
from etude.model.precision.layout import refuse_unknown

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
HEADS = "mtp.safetensors"
"""File of the MTP heads that a family does not publish. No index lists it, so other readers pass it over."""
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.gguf")
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.safetensors")


@dataclass(frozen=True, slots=True)
class CheckpointFolder:
    path: Path
    config: ModelConfig
    dtype: torch.dtype
    """config.json's dtype, that of quantised weights once they are dequantised."""
    quantised: str | None
    """config.json's quantisation method."""
    stored: dict[str, StoredTensor]
    """All tensors by name; none if the folder has only a config.json."""
    unread: tuple[str, ...] = field(default=())
    """Names of files with weights that do not count."""

    @classmethod
    def open(cls, folder: Path | str) -> CheckpointFolder:
        """Read config.json, the index and all headers. Raises UnsupportedCheckpoint if one is damaged, if they
        contradict one another, or if the network is of no known family."""
        folder = Path(folder)
        try:
            return cls._open(folder)
        except OSError as error:
            raise UnsupportedCheckpoint(f"{error.filename or folder} cannot be read: {error.strerror}") from error

    @classmethod
    def _open(cls, folder: Path) -> CheckpointFolder:
        described = file_in(folder, "config.json")
        if described is None:
            raise UnsupportedCheckpoint(f"{folder} is not a checkpoint: it has no config.json")
        data = read_json_file(described)
        data, quantisation = without_quantisation(data)
        quantisation = quantisation or {}
        if not isinstance(quantisation, dict):
            raise UnsupportedCheckpoint(f"{described} is damaged: its quantization_config is no object")
        try:
            refuse_unknown(quantisation)
            config = read_config(data)
        except UnsupportedCheckpoint as error:
            raise UnsupportedCheckpoint(f"{folder}: {error}") from error
        files, index = _listing(folder)
        apart = _heads_of(folder, data)
        stored = _stored_in(folder, files, index, apart)
        settings = {**FAMILIES[config.family].described(data), **data}
        beside = {path.name for pattern in ("*.safetensors", *_PICKLES) for path in folder.glob(pattern)}
        return cls(
            path=folder,
            config=config,
            dtype=_DTYPES.get(str(settings.get("dtype") or settings.get("torch_dtype")), torch.bfloat16),
            quantised=quantisation.get("quant_method"),
            stored=stored,
            unread=tuple(sorted(beside - {file.name for file in [*files, *apart]})),
        )

    def tensor(self, name: str) -> Tensor:
        stored = self.stored[name]
        tensor = torch.empty(stored.shape, dtype=stored.dtype)
        self.read_into(name, tensor)
        return tensor

    def read_into(self, name: str, out: Tensor) -> None:
        """Read a tensor into `out`, a contiguous tensor on the CPU of its dtype and shape."""
        try:
            read_into(self.stored[name], out)
        except OSError as error:
            raise UnsupportedCheckpoint(f"{self.stored[name].file} cannot be read: {error.strerror}") from error


def _listing(folder: Path) -> tuple[list[Path], dict[str, str] | None]:
    """Return the files that hold a checkpoint's tensors, by name, and the file of each tensor if there is an index."""
    single, index = file_in(folder, SINGLE), file_in(folder, INDEX)
    if index is not None:
        listed = _weight_map(index)
        if single is not None and SINGLE not in listed.values():
            raise UnsupportedCheckpoint(f"{folder} has {SINGLE} and an index that does not list it: remove one of them")
        return [_present(folder, name) for name in sorted(set(listed.values()))], listed
    if single is not None:
        return [single], None
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    for prefix, _, count in (shard.groups() for shard in map(_SHARD.fullmatch, found) if shard):
        for number in range(1, min(int(count), len(found) + 1) + 1):
            _present(folder, f"{prefix}-{number:05d}-of-{count}.safetensors")
    return [_present(folder, name) for name in found], None


def _heads_of(folder: Path, data: Mapping[str, Any]) -> list[Path]:
    """Return the file of the MTP heads that the folder has beside its family's tensors, by its config.json."""
    ours, file = data.get("etude"), file_in(folder, HEADS)
    return [file] if file is not None and isinstance(ours, Mapping) and ours.get("mtp_heads") else []


def file_in(folder: Path, name: str) -> Path | None:
    """Return a file of a folder, None if there is none. Raises UnsupportedCheckpoint if it is no regular file, or a
    link that leads out of the folder."""
    path = folder / name
    if not os.path.lexists(path):
        return None
    home, target = Path(os.path.realpath(folder)), Path(os.path.realpath(path))
    if not target.is_relative_to(home) and not target.is_relative_to(_blobs(home)):
        raise UnsupportedCheckpoint(f"{path} is a link that leads out of the folder, to {target}: copy the file")
    if not target.exists():
        raise UnsupportedCheckpoint(f"{path} is a link to a file that is missing: {target}")
    if not target.is_file():
        raise UnsupportedCheckpoint(f"{path} is not a file")
    return path


def weights_digest(folder: Path) -> str:
    """Return the SHA-256 of a checkpoint's weights: of the one file, or of the names and digests of several."""
    described = file_in(folder, "config.json")
    data = read_json_file(described) if described is not None else {}
    digests = {}
    for file in [*_listing(folder)[0], *_heads_of(folder, data)]:
        with file.open("rb") as stream:
            digests[file.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    if list(digests) == [SINGLE]:
        return digests[SINGLE]
    return hashlib.sha256("".join(f"{digest}  {name}\n" for name, digest in digests.items()).encode()).hexdigest()


def _blobs(home: Path) -> Path:
    """Return where the Hugging Face cache stores the files of this folder, or the folder itself outside the cache."""
    snapshots, repository = home.parent, home.parent.parent
    in_cache = snapshots.name == "snapshots" and repository.name.startswith("models--")
    return repository / "blobs" if in_cache else home


def _present(folder: Path, name: str) -> Path:
    file = file_in(folder, name)
    if file is None:
        raise UnsupportedCheckpoint(f"{folder} is incomplete: it lacks {name}")
    return file


def _weight_map(index: Path) -> dict[str, str]:
    """Return the file of each tensor by an index."""
    files: Any = read_json_file(index).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise UnsupportedCheckpoint(f"{index} is damaged: it has no weight_map")
    for name in files.values():
        plain = isinstance(name, str) and name.isprintable() and name == Path(name).name and len(name) < 200
        if not plain or not name.endswith(".safetensors"):
            raise UnsupportedCheckpoint(
                f"{index} lists {ascii(name)[:200]}, which is no .safetensors file of the folder"
            )
    return files


def _stored_in(
    folder: Path, files: list[Path], index: dict[str, str] | None, apart: list[Path]
) -> dict[str, StoredTensor]:
    """Return the tensors of all files. Those of `files` must be exactly the ones that the index lists, if there is
    one; the files `apart` are in no index."""
    stored: dict[str, StoredTensor] = {}
    for file in dict.fromkeys([*files, *apart]):
        tensors = read_header(file)
        if twice := min(stored.keys() & tensors.keys(), default=None):
            raise UnsupportedCheckpoint(f"{folder} has {twice} twice: in {stored[twice].file.name} and {file.name}")
        stored |= tensors
    if index is None:
        return stored
    for name, file_name in index.items():
        if name not in stored or stored[name].file.name != file_name:
            said = ascii(name)[1:-1][:200]
            raise UnsupportedCheckpoint(f"{folder / INDEX} says that {said} is in {file_name}, but it is not")
    listed = {name for name, tensor in stored.items() if tensor.file not in apart}
    if unlisted := min(listed - index.keys(), default=None):
        holder = stored[unlisted].file.name
        raise UnsupportedCheckpoint(f"{folder / INDEX} does not list {unlisted}, which is in {holder}")
    return stored
