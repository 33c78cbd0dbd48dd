"""Random networks of `transformers`, and the same ones as ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from tests.needs import transformers
from torch import Tensor, nn

from etude.model import Transformer, read_config
from etude.model.checkpoints.slots import slots_of

_TEXT = "model.language_model."


def theirs_of(data: Mapping[str, Any], seed: int) -> Any:
    """A random network of `transformers`, whose norms and biases are not at their neutral start."""
    # A copy, because transformers writes into nested settings.
    settings = {name: value for name, value in deepcopy(dict(data)).items() if name != "model_type"}
    config = transformers.AutoConfig.for_model(data["model_type"], **settings)
    if config.model_type == "kimi_k25":
        model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    else:
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in (*model.parameters(), *router_biases(model).values()):
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.add_(0.1 * noise)
            else:
                parameter.copy_(0.15 * noise)
    return model


def router_biases(model: nn.Module) -> dict[str, Tensor]:
    return {name: buffer for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias")}


def published(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Tensors of a network of `transformers`, which stacks experts and joins two of their matrices, by their published
    names. Of Kimi-K2.5 only those of the text part."""
    within = any(name.startswith(_TEXT) for name in tensors)
    for given, tensor in tensors.items():
        name = given
        if within:
            if not given.startswith(_TEXT) and given != "lm_head.weight":
                continue
            name = f"language_model.{given.replace(_TEXT, 'model.')}"
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            stem, kind = name.rsplit(".", 1)
            for expert, matrix in enumerate(tensor):
                parts = matrix.chunk(2) if kind == "gate_up_proj" else (matrix,)
                for part, sort in zip(parts, kind.removesuffix("_proj").split("_"), strict=True):
                    yield f"{stem}.{expert}.{sort}_proj.weight", part
        else:
            yield name, tensor


def ours_of(data: Mapping[str, Any], theirs: Any) -> Transformer:
    model = Transformer(read_config(data))
    state, slots = model.state_dict(), slots_of(model)
    found = dict(published(dict(theirs.named_parameters()) | router_biases(theirs)))
    assert found.keys() == slots.keys()
    with torch.no_grad():
        for name, slot in slots.items():
            whole = state[slot.parameter]
            (whole if slot.expert is None else whole[slot.expert]).copy_(found[name])
    return model


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in module.named_parameters()}


def differences(ours: Transformer, theirs: Any, seed: int) -> tuple[float, dict[str, float]]:
    """The largest difference of the logits, as a share of 1 + the logit, and that of each tensor's gradient, as a share
    of the largest gradient. The loss is a weighted cross-entropy, with the balance loss where there is one."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 61, (2, 40), generator=generator)
    weights = torch.rand(2, 40, generator=generator)
    mixture = ours.config.mixture if ours.config.moe_layers else None
    coefficient = mixture.balance_loss if mixture else 0.0
    there = theirs(tokens, use_cache=False, **({"output_router_logits": True} if coefficient else {}))
    here = ours(tokens, balance_loss=coefficient > 0)
    assert here.logits_btv.std() > 0.05, "the network says nothing, so equality proves nothing"
    added = (coefficient * there.aux_loss, coefficient * here.balance_loss) if coefficient else (0.0, 0.0)
    for module, logits, extra in zip((theirs, ours), (there.logits, here.logits_btv), added, strict=True):
        module.zero_grad()
        losses = F.cross_entropy(logits.flatten(0, 1), tokens.roll(-1, 1).flatten(), reduction="none")
        ((losses * weights.flatten()).mean() + 100 * extra).backward()
    expected, found, unlike = dict(published(gradients(theirs))), gradients(ours), {}
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    for name, slot in slots_of(ours).items():
        if slot.parameter in found:  # no gradient moves a router's bias
            gradient = found[slot.parameter] if slot.expert is None else found[slot.parameter][slot.expert]
            unlike[name] = float((gradient - expected[name]).abs().max()) / largest
    apart = ((here.logits_btv - there.logits).abs() / (1 + there.logits.abs())).detach()
    return float(apart.max()), unlike
