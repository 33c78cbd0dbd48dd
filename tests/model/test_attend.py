from __future__ import annotations

import pytest
import torch

from etude.model import attend as attend_module
from etude.model.attend import Mask, attend

HEADS, GROUPS, LENGTH = 6, 2, 40


@pytest.mark.parametrize("long", [False, True], ids=["short", "long"])
@pytest.mark.parametrize("packed", [False, True])
def test_heads_of_a_group_share_its_keys(packed: bool, long: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attend_module, "LONG", 8 if long else 64)
    monkeypatch.setattr(attend_module, "QUERY_BLOCK", 16)
    make = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, n, LENGTH, w, generator=make) for n, w in ((HEADS, 8), (GROUPS, 8), (GROUPS, 5)))
    documents = (torch.arange(LENGTH) // 15).expand(2, -1) if packed else None
    mask = Mask.build(LENGTH, documents, torch.float32, torch.device("cpu"))
    seen = torch.ones(LENGTH, LENGTH).tril() > 0
    if documents is not None:
        seen &= documents[0, :, None] == documents[0, None]
    k_each, v_each = (x.repeat_interleave(HEADS // GROUPS, 1) for x in (k, v))
    expected = (q @ k_each.mT * 0.3).masked_fill(~seen, float("-inf")).softmax(-1) @ v_each
    torch.testing.assert_close(attend(q, k, v, mask, 0.3), expected)
