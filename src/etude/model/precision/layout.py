"""The layout of quantised weights in Hugging Face checkpoints: names, dtypes, shapes, and the entry in config.json.

Invariant: written tensors have the names, dtypes and shapes of one published layout, and reading them back gives the
same codes and scales. A layout is recognised by the names, dtypes and shapes of the tensors that go with a weight:

| tensors that go with `weight` (E4M3, or uint8 for NVFP4) | format | published by |
|---|---|---|
| `weight_scale_inv` fp32 or E8M0 [M/128, K/128] | block FP8 | DeepSeek |
| `weight_scale` uint8 [M, K/32] | MXFP8 | ModelOpt, compressed-tensors |
| `weight_scale` E4M3 [M, K/16], `weight_scale_2` fp32 [] | NVFP4 | ModelOpt |
| `weight_packed` for `weight`, `weight_scale`, `weight_global_scale` fp32 [1], a divisor | NVFP4 | compressed-tensors |
| `weight_scale` float [M, 1], [M] or [1] | row-wise FP8 | compressed-tensors, ModelOpt |
| `weight_scale` float [M/128, K/128] | block FP8 | compressed-tensors |
| `weight_packed` int32 [M, K/8] for `weight`, `weight_scale` float [M, groups], `weight_shape` [2] | INT4 | Kimi |

Scales of activations, which some engines store as well, are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from etude.model.errors import CannotQuantise, UnsupportedCheckpoint
from etude.model.precision import fp8, mxfp8, nvfp4
from etude.model.precision.elements import from_e8m0
from etude.model.precision.formats import Quantised, format_named
from etude.model.precision.fp8 import BlockFP8, RowFP8
from etude.model.precision.int4 import PER_WORD, Int4
from etude.model.precision.mxfp8 import MXFP8
from etude.model.precision.nvfp4 import NVFP4, outer_scale, quantise_nvfp4
from etude.model.precision.weight_checks import PLAIN

STORED = ("mxfp8", "nvfp4", "fp8_block", "fp8_row")
"""Formats in which checkpoints can be written. NVFP4 is written with one outer scale per tensor, because no published
reader supports one per token."""
_EXPERT = re.compile(r"(.*\.mlp\.experts\.\d+)\.(gate_proj|up_proj|down_proj)\.weight")
_OF_ACTIVATIONS = (".input_scale", ".input_global_scale", ".output_scale", ".k_scale", ".v_scale")
_SCALES = re.compile(r"(.*\.weight)_(scale_inv|scale|global_scale|scale_2|shape|zero_point|g_idx)")
_E4M3 = torch.float8_e4m3fn


def quantise_experts(tensors: Mapping[str, Tensor], name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Quantise the routed experts' weights. Return all tensors to store, and config.json's quantization_config."""
    if name not in STORED:
        raise CannotQuantise(f"checkpoints can be written in {', '.join(STORED)}, not in {name!r}")
    out: dict[str, Tensor] = {}
    for weight, tensor in tensors.items():
        expert = _EXPERT.fullmatch(weight)
        if expert is None:
            out[weight] = tensor
        elif name == "nvfp4":
            # Engines run gate and up as one matmul, so both must have the same outer scale.
            group = ("gate_proj", "up_proj") if expert[2] != "down_proj" else ("down_proj",)
            absmax = torch.stack([tensors[f"{expert[1]}.{one}.weight"].abs().max() for one in group]).max()
            out |= stored_tensors(weight, quantise_nvfp4(tensor, outer=outer_scale(absmax.float())))
        else:
            out |= stored_tensors(weight, format_named(name).quantise(tensor))
    if out.keys() == tensors.keys():
        raise CannotQuantise(f"the network has no experts whose weights could be stored in {name}")
    kept = [w.removesuffix(".weight") for w, t in tensors.items() if t.dim() == 2 and not _EXPERT.fullmatch(w)]
    return out, quantization_config(name, kept)


def stored_tensors(weight: str, q: Quantised) -> dict[str, Tensor]:
    """Return the tensors, by name, that a checkpoint stores for the weight named `weight` (it ends in `.weight`)."""
    match q:
        case MXFP8():
            return {weight: q.codes, f"{weight}_scale": q.scales}
        case NVFP4():
            if q.outer.dim():
                raise CannotQuantise(f"{weight}: checkpoints hold NVFP4 with one outer scale per tensor, not per token")
            return {weight: q.codes, f"{weight}_scale": q.scales, f"{weight}_scale_2": q.outer}
        case BlockFP8():
            if q.rows != fp8.BLOCK:
                raise CannotQuantise(f"{weight}: checkpoints hold blocks of 128 x 128, not of {q.rows} x 128")
            return {weight: q.codes, f"{weight}_scale_inv": q.scales}
        case RowFP8():
            return {weight: q.codes, f"{weight}_scale": q.scales}
        case Int4():
            shape = torch.tensor([len(q.codes), q.width])
            return {f"{weight}_packed": q.codes, f"{weight}_scale": q.scales, f"{weight}_shape": shape}


def quantization_config(name: str, kept: Iterable[str]) -> dict[str, Any]:
    """Build config.json's quantization_config. `kept` names the modules that are not quantised."""
    ignored = list(kept)
    if name == "fp8_block":
        return {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [fp8.BLOCK, fp8.BLOCK],
            "modules_to_not_convert": ignored,
        }
    if name == "fp8_row":
        number = {"num_bits": 8, "type": "float", "symmetric": True}
        group = {
            "targets": ["Linear"],
            "weights": {**number, "strategy": "channel", "dynamic": False},
            "input_activations": {**number, "strategy": "token", "dynamic": True},
        }
        return {
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "quantization_status": "compressed",
            "config_groups": {"group_0": group},
            "ignore": ignored,
        }
    # ModelOpt's plain "NVFP4" would promise scales for activations, which only a calibration could provide.
    algorithm, size = ("MXFP8", mxfp8.BLOCK) if name == "mxfp8" else ("W4A16_NVFP4", nvfp4.BLOCK)
    return {"quant_method": "modelopt", "quant_algo": algorithm, "group_size": size, "ignore": ignored}


def refuse_unknown(config: Mapping[str, Any] | None) -> None:
    """Raise UnsupportedCheckpoint if a quantization_config has unsupported settings that the tensors do not show."""
    if not config:
        return
    method = config.get("quant_method")
    if method not in ("fp8", "modelopt", "modelopt_fp4", "modelopt_mxfp8", "compressed-tensors"):
        raise UnsupportedCheckpoint(f"weights are quantised by {method!r}; convert the checkpoint to bfloat16 first")
    if config.get("fmt", "e4m3") != "e4m3":
        raise UnsupportedCheckpoint(f"quantised weights are {config['fmt']!r}; only 'e4m3' is implemented")
    block = config.get("weight_block_size")
    if block is not None and list(block) != [fp8.BLOCK, fp8.BLOCK]:
        raise UnsupportedCheckpoint(f"weight_block_size is {block}; only [{fp8.BLOCK}, {fp8.BLOCK}] is implemented")
    if config.get("format") == "pack-quantized":
        groups = config.get("config_groups")
        for group in groups.values() if isinstance(groups, dict) else ():
            weights = group.get("weights") if isinstance(group, dict) else None
            if not isinstance(weights, dict) or weights.get("num_bits") != 4 or weights.get("symmetric") is not True:
                raise UnsupportedCheckpoint("of packed weights only symmetric ones of 4 bits are implemented")


def parts_of_quantised(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return, for each quantised weight of a checkpoint, the names of its tensors: "codes" and what goes with them.

    The names alone decide: a weight is quantised if scales go with it.
    """
    stored, parts = set(names), dict[str, dict[str, str]]()
    for name in sorted(stored):
        found = _SCALES.fullmatch(name)
        if found is not None:
            parts.setdefault(found[1], {})[found[2]] = name
    for weight, of_weight in parts.items():
        codes = [name for name in (weight, f"{weight}_packed") if name in stored]
        of_weight |= {"codes": codes[0]} if codes else {}
    return parts


def is_ignored(name: str) -> bool:
    """Whether a tensor is a scale of activations."""
    return name.endswith(_OF_ACTIVATIONS)


def packed_shape(shape: Sequence[int], codes: torch.dtype) -> tuple[int, ...]:
    """Return the shape in which the codes of a weight are stored: two to a byte (NVFP4), or eight to a word (INT4)."""
    per_item = {torch.uint8: 2, torch.int32: PER_WORD}.get(codes, 1)
    return *shape[:-1], -(-shape[-1] // per_item)


def split_quantised(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Quantised]]:
    """Split a checkpoint's tensors into plain ones and quantised weights, each named as if it were not quantised."""
    parts = parts_of_quantised(tensors)
    quantised = {
        weight: quantised_of(weight, {part: tensors[name] for part, name in names.items()})
        for weight, names in parts.items()
    }
    taken = {name for names in parts.values() for name in names.values()}
    rest = {name: tensor for name, tensor in tensors.items() if name not in taken and not is_ignored(name)}
    for name, tensor in rest.items():
        refuse_codes(name, tensor.dtype)
    return rest, quantised


def refuse_codes(name: str, dtype: torch.dtype) -> None:
    """Raise UnsupportedCheckpoint if a tensor without scales does not hold plain numbers."""
    if dtype not in PLAIN:
        raise UnsupportedCheckpoint(f"{name} is {dtype}, but has no scales of a known format")


def quantised_of(weight: str, parts: Mapping[str, Tensor]) -> Quantised:
    """Return a quantised weight from its tensors, as `parts_of_quantised` calls them."""
    codes, scale = parts.get("codes"), parts.get("scale", parts.get("scale_inv"))
    if codes is None or scale is None or codes.dim() != 2:
        raise UnsupportedCheckpoint(f"{weight} lacks its codes or its scales, or does not have two dimensions")
    made: Quantised | None = None
    outer = parts.get("scale_2")
    if outer is None and "global_scale" in parts:
        outer = parts["global_scale"].float().reciprocal()
    if outer is not None and outer.numel() == 1 and codes.dtype == torch.uint8 and scale.dtype == _E4M3:
        made = NVFP4(codes, scale, outer.float().reshape(()))
    elif codes.dtype == _E4M3 and outer is None:
        made = _of_e4m3(codes, scale)
    elif codes.dtype == torch.int32 and outer is None:
        made = _of_int4(weight, codes, scale, parts)
    if made is None or made.scales.shape != _scale_shape(made):
        shapes = f"{codes.dtype} {tuple(codes.shape)} with scales {scale.dtype} {tuple(scale.shape)}"
        raise UnsupportedCheckpoint(f"{weight} is in no known layout: {shapes}")
    return made


def _of_e4m3(codes: Tensor, scale: Tensor) -> Quantised:
    if scale.dtype == torch.uint8:
        return MXFP8(codes, scale)
    exact = from_e8m0(scale.view(torch.uint8)) if scale.dtype == torch.float8_e8m0fnu else scale.float()
    if exact.shape == _blocks(codes):
        return BlockFP8(codes, exact)
    column = exact.reshape(-1, 1)
    # A single scale for the whole tensor is shared by all rows.
    return RowFP8(codes, column.expand(codes.shape[0], 1).contiguous() if column.numel() == 1 else column)


def _of_int4(weight: str, codes: Tensor, scale: Tensor, parts: Mapping[str, Tensor]) -> Quantised | None:
    if more := parts.keys() & {"zero_point", "g_idx"}:
        raise UnsupportedCheckpoint(f"{weight}_{min(more)}: of packed weights only symmetric ones are implemented")
    shape = parts["shape"].flatten().tolist() if "shape" in parts else [len(codes), codes.shape[1] * PER_WORD]
    fits = shape[:1] == [len(codes)] and packed_shape(shape, torch.int32) == codes.shape and scale.dtype in PLAIN
    if not fits or scale.dim() != 2 or not scale.shape[1] or shape[1] % scale.shape[1]:
        return None
    return Int4(codes, scale, shape[1])


def _blocks(codes: Tensor) -> tuple[int, ...]:
    return tuple(-(-size // fp8.BLOCK) for size in codes.shape)


def _scale_shape(q: Quantised) -> tuple[int, ...]:
    rows, width = q.codes.shape
    match q:
        case MXFP8():
            return rows, width // mxfp8.BLOCK
        case NVFP4():
            return rows, 2 * width // nvfp4.BLOCK
        case BlockFP8():
            return _blocks(q.codes)
        case RowFP8():
            return rows, 1
        case Int4():
            return rows, q.scales.shape[1]
