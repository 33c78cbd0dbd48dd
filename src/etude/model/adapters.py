"""The adapters of a network: where they are, how training begins, what versions hold, and how they are merged.

Invariant: in a network with adapters these alone are trained, published and stored; everything else, buffers included,
stays as in the model that the adapters belong to.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from etude.model.attention import Attention
from etude.model.block import Block, Experts, FeedForward, MixtureOfExperts
from etude.model.errors import ModelError
from etude.model.linear import Expansion, Linear
from etude.model.lora import ExpertAdapters, LowRank, adapter_state, fresh_adapter
from etude.model.transformer import Transformer

if TYPE_CHECKING:  # this package must run with torch alone
    from etude.recipe.lora import LoraRecipe, LoraTarget

_STACKS = ("gate_proj", "up_proj", "down_proj")


def begin_adapters(
    model: Transformer, recipe: LoraRecipe, seed: int = 0, *, dtype: torch.dtype = torch.float32
) -> Transformer:
    """Give a network the adapters that the recipe asks for, and freeze everything else. They change nothing yet; a
    network that has adapters goes on with those. Does nothing with rank 0."""
    if not recipe.rank or adapters_of(model):
        return model
    if missing := without_matrices(model, recipe.targets):
        raise ModelError(f"lora.targets names {missing[0]}: the network has no such matrices")
    parameters = dict(model.named_parameters())
    for target, name in matrices_of(model):
        if target in recipe.targets:
            digest = hashlib.sha256(f"{seed}:{name}.lora".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
            scale = recipe.alpha / recipe.rank
            attach_adapter(model, name, fresh_adapter(parameters[name], recipe.rank, scale, generator).to(dtype))
    return freeze_all_but_adapters(model)


def adapter_size(model: Transformer, recipe: LoraRecipe) -> int:
    """Return the number of numbers in the adapters that the recipe asks for, of which this network has none yet."""
    parameters = dict(model.named_parameters())
    shapes = [parameters[name].shape for target, name in matrices_of(model) if target in recipe.targets]
    return sum(recipe.rank * (shape[-2] + shape[-1]) * math.prod(shape[:-2]) for shape in shapes)


def without_matrices(model: Transformer, targets: list[LoraTarget]) -> list[LoraTarget]:
    """Return the targets of which the network has no matrix."""
    found = {target for target, _ in matrices_of(model)}
    return [target for target in targets if target not in found]


def attach_adapter(model: Transformer, name: str, adapter: LowRank) -> None:
    """Attach an adapter to the parameter `name`: a linear layer's weight, or a stack of experts' matrices."""
    path, leaf = name.rsplit(".", 1)
    module = model.get_submodule(path)
    if isinstance(module, Experts) and leaf in _STACKS:
        module.lora = module.lora or ExpertAdapters()
        setattr(module.lora, leaf, adapter)
    elif isinstance(module, Linear | Expansion) and leaf == "weight":
        module.lora = adapter
    else:
        raise ModelError(f"{name} cannot have an adapter: it is not a projection inside a layer")


def freeze_all_but_adapters(model: Transformer) -> Transformer:
    model.requires_grad_(False)
    for adapter in adapters_of(model).values():
        adapter.requires_grad_(True)
    return model


def adapters_of(model: nn.Module) -> dict[str, LowRank]:
    """Return all adapters by the name of the parameter that they belong to, in the order of the network's layers."""
    found: dict[str, LowRank] = {}
    for name, module in model.named_modules():
        if isinstance(module, Linear | Expansion) and module.lora is not None:
            found[f"{name}.weight"] = module.lora
        elif isinstance(module, Experts) and module.lora is not None:
            found |= {f"{name}.{stack}": adapter for stack, adapter in module.lora.named_children()}  # type: ignore[misc]
    return found


def changing_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that training changes: all, but none in a network with adapters."""
    return {} if adapters_of(model) else dict(model.named_buffers())


@contextmanager
def with_adapters(model: nn.Module, state: Mapping[str, Tensor]) -> Iterator[None]:
    """Context in which the network computes with the adapters of `state`, and no others."""
    own = adapter_state(model)
    kept = {name: tensor.clone() for name, tensor in own.items()}
    _copy(state, own)
    try:
        yield
    finally:
        _copy(kept, own)


@torch.no_grad()
def merge_adapters(model: Transformer) -> Transformer:
    """Add each adapter to its matrix, computed in fp32 and rounded to the matrix's dtype, and remove it. Afterwards the
    network is like any other."""
    parameters = dict(model.named_parameters())
    for name, adapter in adapters_of(model).items():
        a, b, matrix = adapter.a, adapter.b, parameters[name]
        stacks = zip(matrix, a, b, strict=True) if matrix.ndim == 3 else [(matrix, a, b)]
        for one, low, high in stacks:  # expert by expert, so that no second stack exists in fp32
            one.copy_(one.float() + (high.float() * adapter.scale) @ low.float())
    for module in model.modules():
        if isinstance(module, Linear | Expansion | Experts):
            module.lora = None
    return model.requires_grad_(True)


def matrices_of(model: Transformer) -> Iterator[tuple[LoraTarget, str]]:
    """Yield the name of every parameter that may have an adapter, after the target to which it belongs."""
    for name, module in model.named_modules():
        if not isinstance(module, Block):
            continue
        yield from _linears("attention", f"{name}.self_attn", module.self_attn)
        if isinstance(module.mlp, FeedForward):
            yield from _linears("mlp", f"{name}.mlp", module.mlp)
        elif isinstance(module.mlp, MixtureOfExperts):
            yield from (("experts", f"{name}.mlp.experts.{stack}") for stack in _STACKS)
            if module.mlp.shared_experts is not None:
                yield from _linears("shared", f"{name}.mlp.shared_experts", module.mlp.shared_experts)


def _linears(target: LoraTarget, path: str, module: Attention | FeedForward) -> Iterator[tuple[LoraTarget, str]]:
    for name, part in module.named_children():
        if isinstance(part, Linear | Expansion):
            yield target, f"{path}.{name}.weight"


@torch.no_grad()
def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    if odd := sorted(source.keys() ^ target.keys()):
        raise ModelError(f"these are the adapters of another network: {len(odd)} tensors differ, first {odd[0]}")
    for name, tensor in source.items():
        target[name].copy_(tensor)
