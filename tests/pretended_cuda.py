"""A CUDA device that is pretended: tensors on it compute on the CPU, so code for a GPU runs without one.

`pretended_cuda()` turns it on for the calling thread. Within it, an operation raises MixedDevices where CUDA would
refuse it because a tensor was never moved, and `.numpy()` refuses tensors of the device. Operations that would make the
CPU wait for the device are counted by name.

It is stricter than CUDA in one point: it also refuses to index a tensor of the device by one of the CPU, because CUDA
then copies the indices and waits.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, ValuesView
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

CUDA = torch.device("cuda:0")
_COPIES = {"_to_copy", "copy_", "_foreach_copy_"}
_WAITS = {"_local_scalar_dense", "nonzero", "bincount", "masked_select", "unique_dim", "_unique2", "equal"}
"""Operations for whose result the CPU waits, since it decides a shape or is a Python number."""
_RAW_POINTER, _MEMORY = 64, 16 << 30


class MixedDevices(RuntimeError):
    pass


class Pretended(Tensor):
    """A tensor on the pretended device. torch's own code sees one of the meta device, which has no data."""

    held: Tensor
    """The numbers, on the CPU."""

    @staticmethod
    def __new__(cls, held: Tensor) -> Pretended:
        with torch.inference_mode(False):  # a view of an ordinary tensor is an ordinary tensor, also in inference mode
            made: Pretended = Tensor._make_wrapper_subclass(
                cls, held.shape, held.stride(), held.storage_offset(), dtype=held.dtype, device="meta"
            )
        made.held = held
        return made

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_cpu = is_meta = property(lambda self: False)

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, new: Pretended) -> None:
        Tensor.data.__set__(self, new)
        self.held = new.held

    def data_ptr(self) -> int:
        return _RAW_POINTER

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        return self.detach().cpu().numpy()

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"Pretended({self.held})"

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} outside of pretended_cuda()")


class _Dispatch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.asks_meta = False
        """Whether the code under test itself asks for the meta device now."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _is_composite(func):
            with self:  # in inference mode they arrive whole
                return func.decompose(*args, **(kwargs or {}))
        kwargs, name = dict(kwargs or {}), func.overloadpacket.__name__
        given = list(_tensors((args, kwargs.values())))
        there = [isinstance(tensor, Pretended) for tensor in given]
        wanted = kwargs.get("device")
        if wanted is not None and torch.device(wanted).type == "meta":
            if self.asks_meta:
                return func(*args, **kwargs)
            wanted = CUDA  # torch's own code means the device of a pretended tensor
        on_cuda = any(there) if wanted is None else torch.device(wanted).type == "cuda"
        if "pin_memory" in kwargs:
            kwargs["pin_memory"] = False
        if not on_cuda and not any(there):
            return func(*args, **kwargs)
        if name in _COPIES:
            self._count_copy(name, args, kwargs)
        elif any(there):
            _refuse_mixed(func, given, there)
        if any(there) and name in _WAITS:
            self.waits[name] += 1
        if name == "copy_":
            on_cuda = there[0]
        if wanted is not None:
            kwargs["device"] = torch.device("cpu")
        held_kwargs = {key: _mapped(lambda one: one.held, Pretended, value) for key, value in kwargs.items()}
        out = _computed(func, name, _mapped(lambda one: one.held, Pretended, args), held_kwargs)
        if not on_cuda:
            return out
        mine = {id(tensor.held): tensor for tensor in given if isinstance(tensor, Pretended)}
        return _mapped(lambda one: mine[id(one)] if id(one) in mine else Pretended(one), Tensor, out)

    def _count_copy(self, name: str, args: Any, kwargs: Any) -> None:
        """Count a copy from the device to the CPU for which the CPU waits."""
        if name == "_to_copy":
            target = kwargs.get("device")
            leaves = isinstance(args[0], Pretended) and target is not None and torch.device(target).type == "cpu"
            waits = not kwargs.get("non_blocking", False)
        elif name == "copy_":
            leaves = isinstance(args[1], Pretended) and not isinstance(args[0], Pretended)
            waits = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        else:
            leaves, waits = (
                any(isinstance(one, Pretended) for one in args[1]) and not isinstance(args[0][0], Pretended),
                True,
            )
        if leaves and waits:
            self.waits["copy to the CPU"] += 1


@functools.cache
def _is_composite(func: Any) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple | ValuesView):
        for inner in value:
            yield from _tensors(inner)


def _mapped(change: Callable[[Any], Any], kind: type, value: Any) -> Any:
    """Return the value with every tensor of a kind changed, those in lists and tuples too."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)(_mapped(change, kind, inner) for inner in value)
    return value


def _refuse_mixed(func: Any, given: list[Tensor], there: list[bool]) -> None:
    for tensor, is_there in zip(given, there, strict=True):
        # CUDA takes single numbers from the CPU, but writes none there.
        if not is_there and (tensor.dim() or (tensor is given[0] and func._schema.is_mutable)):
            raise MixedDevices(f"{func}: a tensor {list(tensor.shape)} of {tensor.dtype} is on the CPU")


def _computed(func: Any, name: str, args: Any, kwargs: Any) -> Any:
    """Compute an operation of the device on the CPU, with what only one of the two can do."""
    if func is torch.ops.aten.mm.dtype:  # bf16 operands with an fp32 result
        assert args[0].dtype == args[1].dtype == torch.bfloat16, "only CUDA's 16-bit matmuls take out_dtype"
        return args[0].to(args[2]) @ args[1].to(args[2])
    if name == "_grouped_mm" and args[0].dtype != torch.bfloat16:
        raise RuntimeError(f"_grouped_mm on CUDA takes bfloat16, found {args[0].dtype}")
    if name == "_fused_sdp_choice":
        return 0  # the kernel written in torch's own operations
    return func(*args, **kwargs)


def _varlen_attn(
    q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, other: Tensor, longest: int, also: int, **more: Any
) -> Tensor:
    """Stand in for the kernel of torch.nn.attention.varlen, document by document."""
    assert bounds is other
    assert bounds.dtype == torch.int32
    assert isinstance(bounds, Pretended)
    lengths = torch.diff(bounds.held).tolist()
    assert max(lengths) == longest == also
    assert sum(lengths) == len(q)
    assert more["window_size"] == (-1, 0), "causal"
    mixed = []
    for part in zip(q.split(lengths), k.split(lengths), v.split(lengths), strict=True):
        one, keys, values = (x.transpose(0, 1).unsqueeze(0) for x in part)
        gqa = more.get("enable_gqa", False)
        y = F.scaled_dot_product_attention(one, keys, values, is_causal=True, scale=more["scale"], enable_gqa=gqa)
        mixed.append(y.squeeze(0).transpose(0, 1))
    return torch.cat(mixed)


class _Indexed(TorchFunctionMode):
    """Names the device by its index, for which torch would ask CUDA, and notes who asks for the meta device."""

    def __init__(self, dispatch: _Dispatch) -> None:
        super().__init__()
        self._dispatch = dispatch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.to or "device" in kwargs:
            args = tuple(map(_indexed, args))
            kwargs = {name: _indexed(value) for name, value in kwargs.items()}
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") == CUDA and not isinstance(args[0], Tensor):
            return func(*args, **{**kwargs, "device": "cpu"}).to(CUDA)  # else torch itself writes the numbers there
        if func is Tensor.to and _stays(args[0], args[1:], kwargs):
            return args[0]
        self._dispatch.asks_meta = str(kwargs.get("device")) == "meta"
        try:
            return func(*args, **kwargs)
        finally:
            self._dispatch.asks_meta = False


def _stays(tensor: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether `to` returns the tensor itself, since it is on the device and of the dtype that are asked for."""
    wanted = (*args, kwargs.get("device"), kwargs.get("dtype"))
    dtypes = [value for value in wanted if isinstance(value, torch.dtype)]
    same = CUDA in wanted and dtypes in ([], [tensor.dtype])
    return same and isinstance(tensor, Pretended) and not kwargs.get("copy", False)


def _indexed(value: Any) -> Any:
    return CUDA if isinstance(value, str | torch.device) and str(value) == "cuda" else value


@contextmanager
def pretended_cuda() -> Iterator[Counter[str]]:
    """Pretend a CUDA device, and yield the counts of operations for which the CPU waits for it, by name."""
    dispatch = _Dispatch()

    def wait(*_: object) -> None:
        dispatch.waits["synchronize"] += 1

    stream = SimpleNamespace(synchronize=wait)
    faked = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "synchronize": wait,
        "empty_cache": lambda: None,
        "mem_get_info": lambda *_: (_MEMORY, _MEMORY),
        "memory_reserved": lambda *_: 0,
        "memory_allocated": lambda *_: 0,
        "current_stream": lambda *_: stream,
        "get_device_name": lambda *_: "a pretended device",
        "get_device_capability": lambda *_: (9, 0),
    }
    kernel = mock.patch("etude.model.attend._varlen", return_value=(_varlen_attn, True))
    with mock.patch.multiple("torch.cuda", **faked), kernel, dispatch, _Indexed(dispatch):
        yield dispatch.waits
