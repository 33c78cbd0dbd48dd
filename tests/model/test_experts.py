from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from etude.model.experts import expert_matmul, experts_grouped, experts_padded, experts_reference, experts_wide

Implementation = Callable[..., Tensor]


def case(
    tokens: int, experts: int, k: int, dtype: torch.dtype = torch.float32, used: int | None = None
) -> list[Tensor]:
    g = torch.Generator().manual_seed(tokens * 100 + experts)
    x = torch.randn(tokens, 32, generator=g)
    chosen = torch.rand(tokens, used or experts, generator=g).topk(k, dim=-1).indices
    gates = torch.rand(tokens, k, generator=g)
    weights = [torch.randn(experts, *s, generator=g) * 0.2 for s in ((16, 32), (16, 32), (32, 16))]
    return [x.to(dtype), chosen, gates, *(w.to(dtype) for w in weights)]


def result(f: Implementation, inputs: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    leaves = [t.clone().requires_grad_(t.is_floating_point()) for t in inputs]
    y = f(*leaves)
    y.float().square().sum().backward()
    return y.detach(), [leaf.grad for leaf in leaves if leaf.grad is not None]


@pytest.mark.parametrize("f", [experts_wide, experts_padded, experts_grouped, expert_matmul])
@pytest.mark.parametrize(
    ("tokens", "experts", "k", "used"), [(40, 8, 2, 8), (3, 8, 2, 8), (30, 5, 1, 2), (64, 16, 4, 6)]
)
def test_every_form_equals_the_reference(f: Implementation, tokens: int, experts: int, k: int, used: int) -> None:
    inputs = case(tokens, experts, k, used=used)
    y, grads = result(f, inputs)
    expected, expected_grads = result(experts_reference, inputs)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    assert len(grads) == 5
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, expected_grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("f", [experts_wide, experts_padded, experts_grouped])
def test_bf16_stays_near(f: Implementation) -> None:
    expected = experts_reference(*case(40, 8, 2))
    y = f(*case(40, 8, 2, torch.bfloat16))
    assert y.dtype == torch.bfloat16
    assert (y.float() - expected).norm() < 0.02 * expected.norm()


def test_widths_that_no_kernel_takes_go_through_the_reference() -> None:
    g = torch.Generator().manual_seed(0)
    x, chosen = torch.randn(9, 7, generator=g), torch.rand(9, 3, generator=g).topk(2).indices
    weights = [torch.randn(3, *s, generator=g) for s in ((5, 7), (5, 7), (7, 5))]
    y = expert_matmul(x, chosen, torch.rand(9, 2, generator=g), *weights)
    assert y.shape == (9, 7)


def test_the_gradient_has_the_same_bits_every_time() -> None:
    inputs = case(200, 8, 2)
    first, second = (result(experts_grouped, inputs)[1] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
