"""fp32 master weights of a module whose own trained parameters are a copy in the compute dtype.

The module computes with the copy (bf16 where that is faster). The masters are optimised, checkpointed and handed to the
next stage. Gradients of several backward passes are summed in fp32 too: in bf16 the sum of many stops growing, because
each is less than half of the sum's last digit. Buffers (router biases) stay in the module and are not cast, because
their small steps would vanish in bf16.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from etude.training.errors import TrainingError
from etude.training.kept import emptied, settle

Offload = Literal["none", "moments", "masters"]


class MasterWeights:
    """The parameters of a module that require a gradient, in fp32. Those that the module itself keeps in fp32 share
    their storage with their masters. Parameters that are frozen from the start (the base of adapters) have no master
    and exist in the compute dtype alone; a stage that freezes parameters later keeps their masters."""

    def __init__(self, model: nn.Module, dtype: torch.dtype | None = None, offload: Offload = "none") -> None:
        """Store the trained parameters in fp32 as masters, and cast all of the module's own to `dtype`; None keeps
        their dtype. `offload` names what stays on the CPU, wherever the module is: "masters" means both."""
        self.offload, self.away = offload, offload == "masters"
        every = dict(model.named_parameters())  # tied weights appear once
        self.parameters: dict[str, nn.Parameter] = {name: p for name, p in every.items() if p.requires_grad}
        self.masters: dict[str, Tensor] = {}
        self.gradients: dict[str, Tensor] = {}
        """Sums in fp32 of the gradients collected since they were last dropped, in no particular order."""
        for parameter in every.values():
            if not parameter.requires_grad:
                parameter.data = parameter.data.to(dtype or parameter.dtype)
        for name, parameter in self.parameters.items():
            # Fresh storage with the usual alignment, wherever the weights came from: kernels may round differently by
            # alignment.
            full = parameter.data.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
            parameter.data = full if dtype == torch.float32 else full.to(dtype or parameter.dtype)
            if self.away:
                self.masters[name] = emptied(full).copy_(full)
            else:  # in fp32 the module's own storage is the master; nothing has to be copied after a step
                self.masters[name] = parameter.data if parameter.dtype == torch.float32 else full
        self._copied = [
            name for name, parameter in self.parameters.items() if self.away or parameter.dtype != torch.float32
        ]

    @torch.no_grad()
    def collect(self) -> None:
        """Add the gradients of a backward pass to the sums, and clear them in the module."""
        for name, parameter in self.parameters.items():
            if (fresh := parameter.grad) is None:
                continue
            parameter.grad = None
            if (total := self.gradients.get(name)) is None:
                self.gradients[name] = fresh.detach().to(torch.float32)
            else:
                total.add_(fresh)

    def drop_gradients(self) -> None:
        self.gradients = {}
        for parameter in self.parameters.values():
            parameter.grad = None

    def take(self, name: str) -> Tensor:
        """Return a master on its parameter's device, to be changed in place and given to `put`."""
        return self.masters[name].to(self.parameters[name].device, non_blocking=True)

    @torch.no_grad()
    def put(self, name: str, changed: Tensor) -> None:
        """Store a changed master that is kept away, and copy it to the module. Does nothing for others, which `publish`
        copies all at once."""
        if self.away:
            self.masters[name].copy_(changed, non_blocking=True)
            self.parameters[name].data.copy_(changed)

    @torch.no_grad()
    def publish(self) -> None:
        """Copy the masters to the module's parameters, rounded to the compute dtype."""
        if self._copied:
            copies = [self.parameters[name].data for name in self._copied]
            torch._foreach_copy_(copies, [self.masters[name] for name in self._copied])

    def restore(self) -> None:
        """Replace the module's trained parameters by the masters, after training, to measure or save the model. With
        masters kept away, the module is on the CPU afterwards."""
        settle(self.away)
        for name in self._copied:
            self.parameters[name].data = self.masters[name]
        self._copied = []

    def state_dict(self) -> dict[str, Tensor]:
        settle(self.away)
        return dict(self.masters)

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if state.keys() != self.masters.keys():
            odd = sorted(state.keys() ^ self.masters.keys())
            raise TrainingError(f"the checkpoint belongs to another model: {len(odd)} tensors differ, first {odd[0]}")
        for name, master in self.masters.items():
            if state[name].shape != master.shape:
                found, wanted = list(state[name].shape), list(master.shape)
                raise TrainingError(f"the checkpoint belongs to another model: {name} is {found}, expected {wanted}")
            master.copy_(state[name])
        self.publish()
