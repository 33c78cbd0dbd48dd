"""The optimizers: AdamW, or Muon for the weight matrices inside the layers and AdamW for all other parameters.

Both update fp32 master weights. One `step` clips by the global norm (MTP heads by their own), updates the masters, and
copies them, rounded, to the module's parameters. A parameter without a gradient is not changed at all (no decay
either): stages freeze parts of the network by not computing their gradient. `state_dict` holds everything a resumed run
needs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from etude.recipe.training import OptimizerRecipe
from etude.training.errors import NonFiniteError
from etude.training.kept import AT_ONCE, BlockNumbers, FullNumbers, Kept, groups_of
from etude.training.masters import MasterWeights
from etude.training.muon import Blocks, blocks_of, idle_experts, muon_updates
from etude.training.schedule import learning_rate

_ADAM_EPS = 1e-8
_HEADS = "mtp."
"""Beginning of the names of the MTP heads' parameters."""


def build_optimizer(
    model: nn.Module, recipe: OptimizerRecipe, total_steps: int, *, masters: MasterWeights | None = None
) -> Optim:
    """Build the recipe's optimizer. To compute in another dtype than the model's, pass `MasterWeights(model,
    dtype)`."""
    blocks: dict[str, Blocks] = {}
    if recipe.name == "muon":
        config = getattr(model, "config", None)
        for name, parameter in model.named_parameters():
            if (found := blocks_of(name, parameter, config)) is not None:
                blocks[name] = found
    return Optim(masters or MasterWeights(model), recipe, total_steps, blocks)


class Optim:
    def __init__(
        self, masters: MasterWeights, recipe: OptimizerRecipe, total_steps: int, blocks: dict[str, Blocks]
    ) -> None:
        self.masters = masters
        self.recipe = recipe
        self.total_steps = total_steps
        self.finished = 0
        self._blocks = blocks
        away = masters.offload != "none"
        self._moments: Kept = FullNumbers(away=away)
        self._squares: Kept = FullNumbers(away=away)
        if recipe.moments == "8bit":
            self._moments, self._squares = BlockNumbers(signed=True, away=away), BlockNumbers(signed=False, away=away)
        copied = away or recipe.moments == "8bit"
        self._at_once = AT_ONCE if copied else None
        """Maximum number of numbers whose states are on the device as fp32 at once; None if all states always are."""
        self._counts: dict[str, int] = {}

    def rate(self) -> float:
        return learning_rate(self.recipe, self.finished, self.total_steps)

    def zero_grad(self) -> None:
        self.masters.drop_gradients()

    def accumulate(self) -> None:
        """Add a microbatch's gradients to the fp32 sums that `step` uses. Call it after the backward pass of each
        microbatch; with one per step it may be left out."""
        self.masters.collect()

    @torch.no_grad()
    def step(self) -> dict[str, float]:
        """Do one update, which uses up the gradients. Return {"lr", "grad_norm"}, where grad_norm is the gradient norm
        before clipping (see `_clip`)."""
        self.masters.collect()
        gradients = self.masters.gradients
        names = [name for name in self.masters.parameters if name in gradients]
        lr = self.rate()
        norm = self._clip({name: gradients[name] for name in names})
        for name in names:
            self._counts[name] = self._counts.get(name, 0) + 1
        sizes = {name: gradients[name].numel() for name in names}
        for group in groups_of([name for name in names if name in self._blocks], sizes, self._at_once):
            self._muon(group, gradients, lr)
        for group in groups_of([name for name in names if name not in self._blocks], sizes, self._at_once):
            self._adamw(group, gradients, lr)
        self.masters.drop_gradients()
        if not self.masters.away:
            self.masters.publish()
        self.finished += 1
        return {"lr": lr, "grad_norm": norm}

    def state_dict(self) -> dict[str, Any]:
        return {
            "finished": self.finished,
            "counts": dict(self._counts),
            "masters": self.masters.state_dict(),
            "moments": self._moments.state_dict(),
            "squares": self._squares.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.masters.load_state_dict(state["masters"])
        self.finished = int(state["finished"])
        self._counts = {name: int(count) for name, count in state["counts"].items()}
        shapes = {name: parameter.shape for name, parameter in self.masters.parameters.items()}
        device = next(iter(self.masters.parameters.values())).device
        self._moments.load(state["moments"], shapes, device)
        self._squares.load(state["squares"], shapes, device)

    def _taken(self, kept: Kept, names: list[str], gradients: dict[str, Tensor]) -> list[Tensor]:
        """Return what is kept for these parameters, zeros at first, as fp32 on their gradients' device."""
        return [
            kept.take(name, gradients[name].device) if name in kept else torch.zeros_like(gradients[name])
            for name in names
        ]

    def _put(self, names: list[str], masters: list[Tensor], states: dict[Kept, list[Tensor]]) -> None:
        """Store masters and moments after an update."""
        for name, master in zip(names, masters, strict=True):
            self.masters.put(name, master)
        for kept, tensors in states.items():
            for name, tensor in zip(names, tensors, strict=True):
                kept.put(name, tensor)

    def _clip(self, gradients: dict[str, Tensor]) -> float:
        """Clip the gradients of the MTP heads and all others, each by their own norm: no gradient of the heads' loss
        reaches the trunk where it is detached, so their norm must not scale the trunk's. Return the norm of the others,
        or that of the heads where they alone have gradients."""
        heads = [gradient for name, gradient in gradients.items() if name.startswith(_HEADS)]
        others = [gradient for name, gradient in gradients.items() if not name.startswith(_HEADS)]
        norms = [self._clip_together(group) for group in (others, heads) if group]
        return norms[0] if norms else 0.0

    def _clip_together(self, gradients: list[Tensor]) -> float:
        norm = float(torch.stack(torch._foreach_norm(gradients)).norm())
        if norm != norm or norm == float("inf"):
            raise NonFiniteError(f"the gradient of step {self.finished} is not finite: lower the learning rate")
        if norm > self.recipe.grad_clip:
            torch._foreach_mul_(gradients, self.recipe.grad_clip / norm)
        return norm

    def _muon(self, names: list[str], gradients: dict[str, Tensor], lr: float) -> None:
        masters = [self.masters.take(name) for name in names]
        moments = self._taken(self._moments, names, gradients)
        fresh = [gradients[name] for name in names]
        idle = [idle_experts(gradient) for gradient in fresh]  # now, because `fresh` is overwritten
        torch._foreach_lerp_(moments, fresh, 1.0 - self.recipe.momentum)
        torch._foreach_lerp_(fresh, moments, self.recipe.momentum)  # Nesterov: look ahead along the new momentum
        half = self.masters.parameters[names[0]].dtype
        updates = muon_updates([(look, self._blocks[name]) for look, name in zip(fresh, names, strict=True)], half)
        self._decay([master for master, mask in zip(masters, idle, strict=True) if mask is None], lr)
        for master, update, mask in zip(masters, updates, idle, strict=True):
            if mask is not None:
                update.masked_fill_(mask, 0.0)
                master.mul_(torch.where(mask, 1.0, 1.0 - lr * self.recipe.weight_decay))
        torch._foreach_add_(masters, updates, alpha=-lr)
        self._put(names, masters, {self._moments: moments})

    def _adamw(self, names: list[str], gradients: dict[str, Tensor], lr: float) -> None:
        masters = [self.masters.take(name) for name in names]
        moments = self._taken(self._moments, names, gradients)
        squares = self._taken(self._squares, names, gradients)
        counts = torch.tensor([float(self._counts[name]) for name in names], device=masters[0].device).unbind()
        for decayed in (True, False):  # norms and biases do not decay
            group = [place for place, master in enumerate(masters) if (master.ndim > 1) == decayed]
            if not group:
                continue
            torch._fused_adamw_(
                [masters[place] for place in group],
                [gradients[names[place]] for place in group],
                [moments[place] for place in group],
                [squares[place] for place in group],
                [],
                [counts[place] for place in group],
                lr=lr,
                beta1=self.recipe.betas[0],
                beta2=self.recipe.betas[1],
                weight_decay=self.recipe.weight_decay if decayed else 0.0,
                eps=_ADAM_EPS,
                amsgrad=False,
                maximize=False,
            )
        self._put(names, masters, {self._moments: moments, self._squares: squares})

    def _decay(self, masters: list[Tensor], lr: float) -> None:
        """Decoupled weight decay. Callers leave out norms and biases."""
        if masters and self.recipe.weight_decay:
            torch._foreach_mul_(masters, 1.0 - lr * self.recipe.weight_decay)
