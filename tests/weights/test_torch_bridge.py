from __future__ import annotations

import numpy as np
import pytest
import torch

from etude.weights import ITEM_SIZES, DoesNotFit
from etude.weights.torch_bridge import from_state_dict, from_torch, into_module, to_torch


@pytest.mark.parametrize("dtype", sorted(ITEM_SIZES))
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (4, 3)])
def test_every_dtype_and_shape_round_trips(dtype: str, shape: tuple[int, ...]) -> None:
    kind = getattr(torch, dtype)
    numbers = torch.arange(int(np.prod(shape)) * ITEM_SIZES[dtype], dtype=torch.uint8)
    if dtype == "bool":
        numbers = numbers % 2
    tensor = numbers.view(kind).reshape(shape) if numbers.numel() else torch.empty(shape, dtype=kind)
    raw = from_torch(tensor)
    assert (raw.dtype, raw.shape) == (dtype, shape)
    back = to_torch(raw)
    assert back.dtype == kind
    assert back.shape == tensor.shape
    assert from_torch(back).equals(raw)


def test_nan_payloads_survive() -> None:
    words = torch.tensor([0x7FC1, 0xFFFF, 0x7F80, 0x8000], dtype=torch.int32).to(torch.int16)
    assert torch.equal(to_torch(from_torch(words.view(torch.bfloat16))).view(torch.int16), words)


def test_memory_is_not_shared() -> None:
    tensor = torch.zeros(4, dtype=torch.bfloat16)
    copied = from_torch(tensor)
    tensor.fill_(1)
    assert not copied.data.any()
    assert from_torch(torch.arange(6.0).reshape(2, 3).T).equals(
        from_torch(torch.arange(6.0).reshape(2, 3).T.contiguous())
    )


def test_a_module_takes_them_in_place() -> None:
    source, target = torch.nn.Linear(3, 2).to(torch.bfloat16), torch.nn.Linear(3, 2)
    before = target.weight.data_ptr()
    into_module(target, from_state_dict(source.state_dict()))
    assert target.weight.data_ptr() == before
    assert torch.equal(target.weight, source.weight.float())


def test_what_does_not_fit_changes_nothing() -> None:
    module = torch.nn.Linear(3, 2).to(torch.bfloat16)
    before = from_state_dict(module.state_dict())
    odd = [
        from_state_dict(torch.nn.Linear(3, 2).state_dict()),
        from_state_dict(torch.nn.Linear(3, 3).to(torch.bfloat16).state_dict()),
        from_state_dict(torch.nn.Linear(3, 2, bias=False).to(torch.bfloat16).state_dict()),
        before | {"more": before["bias"]},
    ]
    for tensors, reason in zip(odd, ("lose precision", "shape", "lacks 'bias'", "lacks 'more'"), strict=True):
        with pytest.raises(DoesNotFit, match=reason):
            into_module(module, tensors)
    after = from_state_dict(module.state_dict())
    assert all(after[name].equals(before[name]) for name in before)
