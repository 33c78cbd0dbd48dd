"""Converts between torch tensors and `RawTensor`. The only file of this package that imports torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

import torch

from etude.weights.errors import DoesNotFit
from etude.weights.tensor import RawTensor, Tensors


def from_state_dict(state: Mapping[str, torch.Tensor]) -> dict[str, RawTensor]:
    return {name: from_torch(tensor) for name, tensor in state.items()}


def from_torch(tensor: torch.Tensor) -> RawTensor:
    raw = view_of(tensor)
    if raw.data.ctypes.data == tensor.data_ptr():
        return RawTensor(raw.dtype, raw.shape, raw.data.copy())
    return raw


def view_of(tensor: torch.Tensor) -> RawTensor:
    """Return a raw tensor that shares the tensor's memory, if that is contiguous and on the CPU; else a copy."""
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    data = flat.view(torch.uint8).numpy()
    return RawTensor(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), data)


class StateViews(Mapping[str, RawTensor]):
    """A state dict's tensors, each converted when it is asked for. It must not change while they are in use."""

    def __init__(self, state: Mapping[str, torch.Tensor]) -> None:
        self._state = state

    def __getitem__(self, name: str) -> RawTensor:
        return view_of(self._state[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)


def to_torch(raw: RawTensor) -> torch.Tensor:
    """Return a torch tensor that shares the raw tensor's memory."""
    dtype = getattr(torch, raw.dtype)
    if not raw.data.size:
        return torch.empty(raw.shape, dtype=dtype)
    return torch.from_numpy(raw.data).view(dtype).reshape(raw.shape)


@runtime_checkable
class _Swapped(Protocol):
    """A module of which versions hold only a part."""

    def swapped_state(self) -> dict[str, torch.Tensor]: ...


def into_module(module: torch.nn.Module, tensors: Tensors) -> None:
    """Copy a version's tensors into a module's parameters and buffers, in place. All are checked before any is copied.
    They must be all that the module has, or those of its `swapped_state` if it has one. Versions of older runs have
    the names of the state dict in either case.

    A tensor may be widened (bfloat16 into a float32 module) but never rounded: that raises DoesNotFit.
    """
    own = module.swapped_state() if isinstance(module, _Swapped) else module.state_dict()
    if own.keys() != tensors.keys() and (state := module.state_dict()).keys() == tensors.keys():
        own = state
    if odd := sorted(own.keys() ^ tensors.keys()):
        side = "the module lacks" if odd[0] in tensors else "the version lacks"
        raise DoesNotFit(f"{len(odd)} tensor names differ; first, {side} {odd[0]!r}")
    sources = {name: to_torch(raw) for name, raw in tensors.items()}
    for name, source in sources.items():
        target = own[name]
        if target.shape != source.shape:
            raise DoesNotFit(f"{name}: shape {list(source.shape)} into {list(target.shape)}")
        if source.dtype != target.dtype and torch.promote_types(source.dtype, target.dtype) != target.dtype:
            raise DoesNotFit(f"{name}: {source.dtype} into {target.dtype} would lose precision")
    with torch.no_grad():
        for name, source in sources.items():
            own[name].copy_(source)
