"""Adapters on disk, in the folder format of PEFT: adapter_config.json and adapter_model.safetensors.

The folder names its base, a checkpoint folder; a relative path counts from the folder itself. Experts' adapters are
stored one by one under published names, as published adapters are. PEFT's own layout for the stacked experts of
transformers 5 is read too. Where training has changed the network's description (a longer context), a config.json lies
beside the adapters and takes the place of the base's.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from etude.journal.files import write_atomically
from etude.model.adapters import adapters_of, attach_adapter, freeze_all_but_adapters, matrices_of
from etude.model.checkpoints.folder import CheckpointFolder, file_in
from etude.model.checkpoints.slots import Slot, slots_of, without_memory
from etude.model.checkpoints.tensor_file import StoredTensor, read_header, read_into, read_json_file, write_tensors
from etude.model.checkpoints.writing import copy_travelling, save_hf
from etude.model.config import ModelConfig
from etude.model.errors import ModelError, UnsupportedCheckpoint
from etude.model.families import FAMILIES, read_config, write_config
from etude.model.lora import LowRank
from etude.model.precision.weight_checks import PLAIN, Fault, faults, refuse_faults, require_no_faults
from etude.model.transformer import Transformer

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_MATRIX = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
_STACK = re.compile(r"(.+\.mlp\.experts)(\.base_layer)*")
_PATTERN, _STARS = re.compile(r"\^?([\w\-.*]|\\[.\-])*\$?"), 3
"""Regular expressions that cannot take long, and their maximum number of stars."""
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "bias": ("none",),
    "use_dora": (False,),
    "use_qalora": (False,),
    "lora_bias": (False,),
    "fan_in_fan_out": (False,),
    "modules_to_save": ([],),
    "layer_replication": ([],),
    "trainable_token_indices": ([], {}),
    "alora_invocation_tokens": ([],),
    "use_bdlora": (),
    "arrow_config": (),
    "kasa_config": (),
    "velora_config": (),
}
"""Settings that change what an adapter computes, with the values besides null at which they do not."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Where the adapter of one parameter is stored."""

    module: str
    """Name by which `rank_pattern` and `alpha_pattern` may name it."""
    a: tuple[str, ...]
    b: tuple[str, ...]
    """Names of the stored matrices: one, or one of each expert."""
    rank: int
    experts: int = 0
    """Number of experts whose matrices are joined to one, as PEFT joins them; 0 if they are not."""
    rows: tuple[int, int] = (0, 0)
    """Half-open range of rows of the joined B that belong to this parameter: gate and up projection share an A."""

    def read(self, read: Callable[[str], Tensor]) -> tuple[Tensor, Tensor]:
        if self.experts:  # the index of the expert varies slowest in A's rows, and fastest in B's columns
            b = read(self.b[0]).unflatten(1, (-1, self.experts)).permute(2, 0, 1)
            return read(self.a[0]).unflatten(0, (self.experts, -1)), b[:, self.rows[0] : self.rows[1]]
        a, b = (torch.stack([read(name) for name in names]) for names in (self.a, self.b))
        return (a, b) if len(a) > 1 or ".experts." in self.a[0] else (a[0], b[0])


@dataclass(frozen=True, slots=True)
class AdapterFolder:
    path: Path
    base: CheckpointFolder
    config: ModelConfig
    settings: Mapping[str, Any]
    stored: Mapping[str, StoredTensor]

    @classmethod
    def open(cls, folder: Path | str) -> AdapterFolder | None:
        """Read settings and headers, those of the base too; None if the folder holds no adapters. Raises
        UnsupportedCheckpoint if they are damaged or of a kind that is not implemented, or if the base is not there."""
        folder = Path(folder)
        try:
            described = file_in(folder, CONFIG)
            if described is None:
                return None
            settings = read_json_file(described)
            _require_plain_lora(described, settings)
            if (weights := file_in(folder, WEIGHTS)) is None:
                raise UnsupportedCheckpoint(f"{folder} is incomplete: it lacks {WEIGHTS}")
            base = CheckpointFolder.open(_base_of(folder, settings.get("base_model_name_or_path")))
            own = file_in(folder, "config.json")
            config = base.config if own is None else read_config(read_json_file(own))
            return cls(folder, base, config, settings, read_header(weights))
        except OSError as error:
            raise UnsupportedCheckpoint(f"{error.filename or folder} cannot be read: {error.strerror}") from error

    def problem(self) -> str | None:
        """Return what keeps the adapters from being attached, as the rest of a sentence that begins with the folder."""
        try:
            self._pieces()
        except UnsupportedCheckpoint as error:
            return str(error)
        return None

    def attach_to(self, model: Transformer, dtype: torch.dtype | None) -> None:
        """Attach the adapters to the base, in `dtype` or as they are stored. Those of MTP heads that the network was
        built without are left out."""
        refuse_faults(self.faults(), f"{self.path} is not loaded")
        device, network = model.embed_tokens.weight.device, model.state_dict().keys()
        try:
            pieces = self._pieces()
        except UnsupportedCheckpoint as error:
            raise UnsupportedCheckpoint(f"{self.path} {error}") from error
        for name, piece in pieces.items():
            if name in network:
                a, b = (part.to(device, dtype or part.dtype).contiguous() for part in piece.read(self._read))
                attach_adapter(model, name, LowRank(a, b, self._scale(piece)))
        freeze_all_but_adapters(model)

    def faults(self) -> list[Fault]:
        return [fault for name in self.stored for fault in faults({name: self._read(name)})]

    def _read(self, name: str) -> Tensor:
        stored = self.stored[name]
        out = torch.empty(stored.shape, dtype=stored.dtype)
        try:
            read_into(stored, out)
        except OSError as error:
            raise UnsupportedCheckpoint(f"{stored.file} cannot be read: {error.strerror}") from error
        return out

    def _scale(self, piece: _Piece) -> float:
        alpha = _by_pattern(self.settings, "alpha_pattern", piece.module, "lora_alpha")
        return float(alpha / (piece.rank**0.5 if self.settings.get("use_rslora") else piece.rank))

    def _pieces(self) -> dict[str, _Piece]:
        """Return where each adapter is stored, by the name of its parameter. Raises UnsupportedCheckpoint, with the
        rest of a sentence that begins with the folder."""
        found: dict[str, dict[str, str]] = defaultdict(dict)
        for name, stored in self.stored.items():
            matrix = _MATRIX.fullmatch(name)
            if matrix is None or stored.dtype not in PLAIN or len(stored.shape) != 2:
                raise UnsupportedCheckpoint(f"has the tensor {name}, which is no matrix of a LoRA adapter")
            found[matrix[1]][matrix[2]] = name
        for module, halves in found.items():
            if len(halves) < 2:
                raise UnsupportedCheckpoint(f"has only one of the two matrices of {module}")
        network = without_memory(self.config)
        slots, known = slots_of(network), {name for _, name in matrices_of(network)}
        pieces: dict[str, _Piece] = {}
        stacks: dict[str, dict[int, str]] = defaultdict(dict)
        for module in found:
            slot = slots.get(f"{module}.weight")
            if stack := _STACK.fullmatch(module):
                pieces |= self._joined(stack[1], found[module], slots)
            elif slot is None or slot.parameter not in known:
                raise UnsupportedCheckpoint(f"adapts {module}, which no adapter here can")
            elif slot.expert is not None:
                stacks[slot.parameter][slot.expert] = module
            else:
                pieces[slot.parameter] = self._checked([module], found, slot.shape)
        for parameter, modules in stacks.items():
            shape = network.get_parameter(parameter).shape
            if missing := set(range(len(network.get_parameter(parameter)))) - modules.keys():
                raise UnsupportedCheckpoint(f"adapts only some experts of {parameter}, not expert {min(missing)}")
            pieces[parameter] = self._checked([modules[n] for n in sorted(modules)], found, tuple(shape[1:]))
        if not pieces:
            raise UnsupportedCheckpoint("has no adapters")
        return pieces

    def _checked(self, modules: list[str], found: Mapping[str, Mapping[str, str]], shape: tuple[int, ...]) -> _Piece:
        """Return the piece of one matrix, or of one stack of matrices of this shape, if all stored shapes fit."""
        rank = self.stored[found[modules[0]]["A"]].shape[0]
        self._require_rank(modules[0], rank)
        for module in modules:
            for half, expected in (("A", (rank, shape[1])), ("B", (shape[0], rank))):
                self._require_shape(found[module][half], expected)
        a, b = (tuple(found[module][half] for module in modules) for half in "AB")
        return _Piece(modules[0], a, b, rank)

    def _joined(self, stack: str, halves: Mapping[str, str], slots: Mapping[str, Slot]) -> dict[str, _Piece]:
        """Return the pieces of experts whose matrices PEFT has joined. Which of the two stacks they belong to follows
        from their shapes, since PEFT nests whichever comes first."""
        mixture = self.config.mixture
        if mixture is None or f"{stack}.0.gate_proj.weight" not in slots:
            raise UnsupportedCheckpoint(f"adapts {stack}, and the network has no such experts")
        inner, width, experts = mixture.width, self.config.hidden_size, mixture.experts
        rows, columns = self.stored[halves["B"]].shape[0], self.stored[halves["A"]].shape[1]
        rank = self.stored[halves["A"]].shape[0] // experts
        self._require_shape(halves["A"], (rank * experts, columns))
        self._require_shape(halves["B"], (rows, rank * experts))
        parts = {(2 * inner, width): ("gate_proj", "up_proj"), (width, inner): ("down_proj",)}.get((rows, columns))
        if parts is None:
            raise UnsupportedCheckpoint(f"has {halves['B']} and its A of shapes that fit no stack of experts")
        module = f"{stack}.{'gate_up_proj' if len(parts) == 2 else 'down_proj'}"
        self._require_rank(module, rank)
        each = rows // len(parts)
        return {
            slots[f"{stack}.0.{part}.weight"].parameter: _Piece(
                module, (halves["A"],), (halves["B"],), rank, experts, (n * each, (n + 1) * each)
            )
            for n, part in enumerate(parts)
        }

    def _require_rank(self, module: str, rank: int) -> None:
        said = _by_pattern(self.settings, "rank_pattern", module, "r")
        if rank != said:
            raise UnsupportedCheckpoint(f"has adapters of rank {rank} for {module}, and {CONFIG} says {said}")

    def _require_shape(self, name: str, expected: tuple[int, ...]) -> None:
        if (shape := self.stored[name].shape) != expected:
            raise UnsupportedCheckpoint(f"has {name} of shape {shape}, the base needs {expected}")


def save_trained(model: Transformer, folder: Path, base: Path, source: Path) -> None:
    """Write what a stage has trained: a whole checkpoint, or the adapters of `base` alone."""
    if adapters_of(model):
        save_adapter(model, folder, base, source)
    else:
        save_hf(model, folder, source)


def save_adapter(
    model: Transformer,
    folder: Path | str,
    base: Path,
    source: Path | str | None = None,
    *,
    named: str | None = None,
    mtp_heads: bool = True,
) -> None:
    """Write a network's adapters alone. `base` is the checkpoint folder that they belong to, `named` what the written
    folder calls it: by default the way from one to the other.

    The files of `source` that belong to a tokenizer or say how to generate travel along. With `mtp_heads` False those
    of MTP heads are left out, which no other tool knows. Weights that are not finite raise PoisonedWeights."""
    folder, adapters = Path(folder), adapters_of(model)
    if not adapters:
        raise ModelError("the network has no adapters: write it with save_hf")
    family, experts = FAMILIES[model.config.family].names, model.config.n_routed_experts
    tensors: dict[str, Tensor] = {}
    of_module: dict[str, tuple[int, float]] = {}
    for name, adapter in adapters.items():
        if name.startswith("mtp.") and not mtp_heads:
            continue
        published = family.published(name, model.config)
        singles = family.of_experts(published, experts)
        a, b = adapter.a.detach(), adapter.b.detach()
        for place, weight in enumerate(singles or [published]):
            module = weight.removesuffix(".weight")
            of_module[module] = (adapter.rank, adapter.scale * adapter.rank)
            for half, whole in (("A", a), ("B", b)):
                tensors[f"base_model.model.{module}.lora_{half}.weight"] = whole[place] if singles else whole
    require_no_faults(tensors, f"{folder} is not written")
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{WEIGHTS}.partial"
    write_tensors(partial, {name: tensor.contiguous() for name, tensor in tensors.items()})
    (folder / CONFIG).unlink(missing_ok=True)  # an interrupted write is never taken for adapters
    partial.replace(folder / WEIGHTS)
    if CheckpointFolder.open(base).config != model.config:
        write_atomically(folder / "config.json", _json(write_config(model.config)))
    copy_travelling(source, folder)
    write_atomically(folder / CONFIG, _json(_settings_of(of_module, named or os.path.relpath(base, folder))))


def _settings_of(of_module: Mapping[str, tuple[int, float]], base: str) -> dict[str, Any]:
    """Return adapter_config.json for the rank and alpha of each module."""
    (rank, alpha), _ = Counter(of_module.values()).most_common(1)[0]
    others = {re.escape(module): own for module, own in of_module.items() if own != (rank, alpha)}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({module.rpartition(".")[2] for module in of_module}),
        "rank_pattern": {module: own[0] for module, own in others.items()},
        "alpha_pattern": {module: own[1] for module, own in others.items()},
    }


def _require_plain_lora(described: Path, settings: Mapping[str, Any]) -> None:
    kind, rank, alpha = settings.get("peft_type"), settings.get("r"), settings.get("lora_alpha")
    if kind != "LORA":
        raise UnsupportedCheckpoint(f"{described} says peft_type = {kind!r}: only LORA is read")
    for name, neutral in _NEUTRAL.items():
        value = settings.get(name)
        if value is not None and value not in neutral:
            raise UnsupportedCheckpoint(f"{described} says {name} = {json.dumps(value)[:60]}, which is not implemented")
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float):
        raise UnsupportedCheckpoint(f"{described} is damaged: it says r = {rank!r} and lora_alpha = {alpha!r}")
    for name in ("rank_pattern", "alpha_pattern"):
        pattern = settings.get(name) or {}
        if not isinstance(pattern, dict) or not all(isinstance(value, int | float) for value in pattern.values()):
            raise UnsupportedCheckpoint(f"{described} is damaged: its {name} is no table of numbers")
        if strange := [key for key in pattern if not _PATTERN.fullmatch(key) or key.count("*") > _STARS]:
            raise UnsupportedCheckpoint(
                f"{described} has {strange[0][:60]!r} in its {name}: only names with a few .* are read"
            )


def _base_of(folder: Path, named: Any) -> Path:
    """Return the folder of the base that a folder with adapters names."""
    if not isinstance(named, str) or not named:
        raise UnsupportedCheckpoint(f"{folder / CONFIG} does not say base_model_name_or_path")
    for place in (folder / named, Path(named)):
        if (place / "config.json").is_file():
            if (place / CONFIG).exists():
                break
            return place
    else:
        raise UnsupportedCheckpoint(
            f"{folder} holds adapters of {named}, which is not there: download it, and set base_model_name_or_path in "
            f"{CONFIG} to its folder"
        )
    raise UnsupportedCheckpoint(f"{folder} holds adapters of {named}, which holds adapters itself: merge those first")


def _by_pattern(settings: Mapping[str, Any], pattern: str, module: str, usual: str) -> Any:
    """Return a module's rank or alpha: that of the first matching pattern, a regular expression for the end of its
    name."""
    for key, value in (settings.get(pattern) or {}).items():
        if re.fullmatch(rf"(.*\.)?({key})", module):
            return value
    return settings[usual]


def _json(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(data, indent=2) + "\n").encode()
