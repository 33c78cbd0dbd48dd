"""Sets up a network for low precision in training and in inference.

A trainer's network keeps its weights and rounds them in every pass. In an engine's network, and in the weights versions
that a trainer publishes to engines, codes and scales replace the weights of the routed experts. Invariant: these codes
equal those of the trainer's forward pass bit by bit, because `Numerics.codes` computes both. An engine dequantises the
codes once per version, not once per step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from etude.model.attention import Attention
from etude.model.block import Experts, MixtureOfExperts
from etude.model.errors import CannotQuantise
from etude.model.linear import Expansion, Linear
from etude.model.lora import adapter_state
from etude.model.precision.formats import Quantised, dequantise, split_tensors
from etude.model.precision.kernels import experts_by_kernels, kernels_for
from etude.model.precision.numerics import Numerics, Operand
from etude.model.precision.rounded import rounded_experts
from etude.model.precision.weight_checks import require_no_faults
from etude.model.published_state import published_state
from etude.model.router import Routing
from etude.model.transformer import Transformer

if TYPE_CHECKING:  # this package must run with torch alone
    from etude.recipe.precision import PrecisionRecipe


_NO_VERSION = "no version is made of these weights"


@runtime_checkable
class _HasInvariant(Protocol):
    """A module that can compute batch-invariantly."""

    invariant: bool


class Codes(nn.Module):
    """A quantised weight whose codes and scales are buffers, and so part of the state dict."""

    def __init__(self, q: Quantised) -> None:
        super().__init__()
        parts, self._rebuild = split_tensors(q)
        for name, part in parts.items():
            self.register_buffer(name, part)

    def quantised(self) -> Quantised:
        return self._rebuild(**dict(self.named_buffers()))


class ServedExperts(nn.Module):
    """Routed experts for inference, whose weights are codes and scales."""

    gate_up: Operand
    down: Operand
    """`gate_up` (gate and up projections together) and `down` are dequantised weights, set by `prepare`. They stay
    unset if kernels compute the layer from the quantised weights directly."""

    def __init__(self, experts: Experts, numerics: Numerics) -> None:
        super().__init__()
        self.numerics, self.kernels = numerics, experts.kernels
        self.dtype = experts.gate_proj.dtype
        gate, up = numerics.codes((experts.gate_proj, experts.up_proj))
        (down,) = numerics.codes((experts.down_proj,))
        self.gate_proj, self.up_proj, self.down_proj = Codes(gate), Codes(up), Codes(down)

    def prepare(self) -> None:
        """Dequantise the weights once for all later passes. Does nothing with kernels, which read the codes."""
        if self.kernels is not None:
            return
        self.gate_up = self.numerics.operand((self.gate_proj.quantised(), self.up_proj.quantised()), self.dtype)
        self.down = self.numerics.operand((self.down_proj.quantised(),), self.dtype)

    def forward(self, x_nd: Tensor, routing: Routing) -> Tensor:
        if self.kernels is not None:
            codes = [part.quantised() for part in (self.gate_proj, self.up_proj, self.down_proj)]
            return experts_by_kernels(x_nd, routing.experts_nk, routing.gates_nk, codes, self.kernels)
        return rounded_experts(x_nd, routing.experts_nk, routing.gates_nk, self.gate_up, self.down, self.numerics)


def compute_with(model: nn.Module, recipe: PrecisionRecipe) -> None:
    """Apply a recipe's `[precision]` section to a network, for the device that the network is on."""
    kernels = kernels_for(recipe, next(model.parameters()).device)
    for module in model.modules():
        if isinstance(module, Experts):
            if kernels is not None:
                _refuse_adapters(module)
            module.kernels = kernels
        if isinstance(module, _HasInvariant):
            module.invariant = recipe.invariant
    round_with(model, Numerics.of(recipe))


def round_with(model: nn.Module, numerics: Numerics | None) -> None:
    """Set the emulated rounding of a network's matmuls, forward and backward; None removes it.

    Low-precision kernels are not changed; `compute_with` chooses them. The router, the dense layers, the embedding, the
    head, attention's projection from the latent to keys and values, and adapters are never rounded.
    """
    for module in model.modules():
        if isinstance(module, ServedExperts):
            raise CannotQuantise(
                "the network's weights were replaced by codes: call restore() before setting the rounding"
            )
        if isinstance(module, Experts | Linear):
            module.numerics = None
        if isinstance(module, Linear):
            module.served = None
    if numerics is None:
        return
    if not _mixtures(model) and "attention" not in numerics.also:
        raise CannotQuantise("the network has no experts whose matmuls could be rounded")
    for name, module in model.named_modules():
        if isinstance(module, MixtureOfExperts):
            assert isinstance(module.experts, Experts)
            _refuse_adapters(module.experts)
            _require_blocks(f"{name}.experts", module.experts, numerics)
            module.experts.numerics = numerics
            if "shared" in numerics.also and module.shared_experts is not None:
                _round_linears(f"{name}.shared_experts", module.shared_experts, numerics)
        elif isinstance(module, Attention) and "attention" in numerics.also:
            _round_linears(name, module, numerics)


@torch.no_grad()
def serve(model: nn.Module) -> None:
    """Prepare a network for inference: replace the weights of routed experts by codes and scales if their format has
    them, and cache rounded weights. Experts whose weights were replaced can no longer be trained."""
    for mixture in _mixtures(model):
        experts = mixture.experts
        if isinstance(experts, Experts) and experts.numerics is not None and experts.numerics.has_codes:
            mixture.experts = ServedExperts(experts, experts.numerics)
    prepare(model)


@torch.no_grad()
def prepare(model: nn.Module) -> None:
    """Recompute the weights that a served network caches. Call it after loading weights."""
    for module in model.modules():
        if isinstance(module, ServedExperts | Linear | Expansion | Transformer):
            module.prepare()


@torch.no_grad()
def restore(model: nn.Module) -> None:
    """Undo `serve`: replace the experts' codes by dequantised weights, so that a checkpoint can be written."""
    for mixture in _mixtures(model):
        if isinstance(served := mixture.experts, ServedExperts):
            gate, up, down = (
                dequantise(codes.quantised(), served.dtype)
                for codes in (served.gate_proj, served.up_proj, served.down_proj)
            )
            experts = Experts(mixture.gate.shape, mixture.gate.weight.shape[1])
            experts.gate_proj, experts.up_proj, experts.down_proj = map(nn.Parameter, (gate, up, down))
            experts.numerics, experts.kernels = served.numerics, served.kernels
            mixture.experts = experts
    for module in model.modules():
        if isinstance(module, Linear | Expansion):
            module.served = None
        elif isinstance(module, Transformer):
            module.wide_head_vh = None


@torch.no_grad()
def served_state(model: nn.Module, *, published: bool = True) -> dict[str, Tensor]:
    """Return the `swapped_state` that the model would have after `serve`, without changing it: what trainers publish
    to engines. Of a network with adapters it is these alone. `published` says whether the names are those of published
    checkpoints, as in every new version, or the network's own, as in versions of older runs.

    Weights that are not finite or were clipped raise PoisonedWeights.
    """
    if adapters := adapter_state(model):
        require_no_faults(adapters, _NO_VERSION)
        return adapters
    weights = model.state_dict()
    state = dict(weights)
    for name, module in model.named_modules():
        if isinstance(module, Experts) and module.numerics is not None and module.numerics.has_codes:
            for weight in module.state_dict():
                del state[f"{name}.{weight}"]
            served = ServedExperts(module, module.numerics).state_dict()
            state |= {f"{name}.{part}": tensor for part, tensor in served.items()}
    # The codes were just computed from these weights and scales, so checking weights and scales suffices.
    checked = {name: tensor for name, tensor in (weights | state).items() if not name.endswith(".codes")}
    require_no_faults(checked, _NO_VERSION)
    return published_state(model.config, state) if published and isinstance(model, Transformer) else state


def _mixtures(model: nn.Module) -> list[MixtureOfExperts]:
    return [module for module in model.modules() if isinstance(module, MixtureOfExperts)]


def _round_linears(name: str, module: nn.Module, numerics: Numerics) -> None:
    for part, linear in module.named_children():
        if isinstance(linear, Linear):
            _require_blocks(f"{name}.{part}", linear, numerics)
            linear.numerics = numerics


def _refuse_adapters(experts: Experts) -> None:
    if experts.lora is not None:
        raise CannotQuantise(
            "the experts have adapters, which only plain torch computes: leave experts out of lora.targets, or leave "
            "precision.experts, precision.emulate and precision.kernels at their defaults"
        )


def _require_blocks(name: str, module: nn.Module, numerics: Numerics) -> None:
    """Raise CannotQuantise unless the block size divides the last two axes of every weight: forward blocks lie along
    the input width, backward ones along the output width. Block FP8 pads incomplete blocks; bf16 has none."""
    for weight, matrix in module.named_parameters(recurse=False):
        rounded = matrix.ndim > 1 and numerics.rounding not in ("fp8_block", "bf16")
        if rounded and any(size % numerics.block for size in matrix.shape[-2:]):
            raise CannotQuantise(
                f"{name}.{weight} is {list(matrix.shape[-2:])}; with {numerics.rounding} both axes must be multiples "
                f"of {numerics.block}, the block size of the backward pass"
            )
