from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from etude.model import Transformer
from etude.model import attention as attention_module

CUTS = [5, 1, 12, 6]


def packed_documents(lengths: list[int]) -> torch.Tensor:
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))[None]


def test_packed_documents_equal_separate_ones(shaped: Transformer, tokens_of: Any) -> None:
    tokens = tokens_of(1, sum(CUTS))
    output = shaped(tokens, documents_bt=packed_documents(CUTS))
    alone = [shaped(part) for part in tokens.split(CUTS, dim=1)]
    joined = torch.cat([o.logits_btv for o in alone], dim=1)
    torch.testing.assert_close(output.logits_btv, joined, rtol=1e-5, atol=1e-5)
    assert torch.equal(output.experts_btlk, torch.cat([o.experts_btlk for o in alone], dim=1))


def test_positions_only_matter_relative_to_each_other(model_of: Any, tokens_of: Any) -> None:
    model, tokens = model_of(), tokens_of(1, 24)
    documents = packed_documents([10, 14])
    restarting = model(tokens, documents_bt=documents).logits_btv
    running = model(tokens, documents_bt=documents, positions_bt=torch.arange(24)[None]).logits_btv
    torch.testing.assert_close(restarting, running, rtol=1e-4, atol=1e-4)


def test_gradients_do_not_leak_between_documents(model_of: Any, tokens_of: Any) -> None:
    model, tokens = model_of(), tokens_of(1, sum(CUTS))
    embedded: list[torch.Tensor] = []

    def keep(_module: Any, _inputs: Any, out: torch.Tensor) -> None:
        out.retain_grad()
        embedded.append(out)

    with_hook = model.embed_tokens.register_forward_hook(keep)
    model(tokens, documents_bt=packed_documents(CUTS)).logits_btv[0, 6:18].square().sum().backward()
    with_hook.remove()
    touched = embedded[0].grad[0].abs().sum(-1) > 0
    assert touched.tolist() == [6 <= t < 18 for t in range(sum(CUTS))]


@pytest.mark.parametrize("packed", [False, True])
def test_the_fused_kernel_equals_the_explicit_blocks(
    model_of: Any, tokens_of: Any, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokens = model_of(), tokens_of(2, 300)
    documents = packed_documents([100, 150, 50]).expand(2, -1) if packed else None
    explicit = model(tokens, documents_bt=documents).logits_btv
    monkeypatch.setattr(attention_module, "LONG", 256)
    fused = model(tokens, documents_bt=documents).logits_btv
    torch.testing.assert_close(explicit, fused, rtol=1e-5, atol=2e-5)


def test_the_same_seed_gives_the_same_bits(config_of: Any, tokens_of: Any) -> None:
    torch.manual_seed(123)
    first = Transformer(config_of()).initialise(7)
    torch.manual_seed(456)
    second = Transformer(config_of()).initialise(7)
    other = Transformer(config_of()).initialise(8)
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name])
    assert not torch.equal(first.embed_tokens.weight, other.embed_tokens.weight)
    grads = []
    for model in (first, second):
        model(tokens_of(4, 64)).logits_btv.square().mean().backward()
        grads.append([p.grad for p in model.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_bf16_is_near_fp32_and_learns(model_of: Any, tokens_of: Any) -> None:
    model, tokens = model_of(initializer_range=0.05), tokens_of(2, 32)
    half = copy.deepcopy(model).to(torch.bfloat16)
    output = half(tokens)
    assert output.logits_btv.dtype == torch.float32
    difference = output.logits_btv - model(tokens).logits_btv
    assert difference.norm() < 0.05 * model(tokens).logits_btv.norm()
    output.logits_btv.square().sum().backward()
    trunk = [p for name, p in half.named_parameters() if not name.startswith("mtp.")]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in trunk)


def test_a_token_that_occurs_often_gets_the_sum_of_its_gradients(model_of: Any) -> None:
    model = model_of().to(torch.bfloat16)
    often = 7
    tokens = torch.full((1, 2048), often)
    tokens[0, ::64] = 3
    embedded = model.embed_tokens(tokens)
    weights = torch.rand(embedded.shape, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    (embedded * weights).sum().backward()
    expected = weights[tokens == often].double().sum(0)
    torch.testing.assert_close(model.embed_tokens.weight.grad[often].double(), expected, rtol=2**-8, atol=0)


def test_every_parameter_of_the_trunk_gets_a_gradient(shaped: Transformer, tokens_of: Any) -> None:
    model = copy.deepcopy(shaped)
    model(tokens_of(4, 32)).logits_btv.square().sum().backward()
    silent = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert all(name.startswith("mtp.") for name in silent)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_equals_cpu(shaped: Transformer, tokens_of: Any) -> None:
    tokens, documents = tokens_of(1, sum(CUTS)), packed_documents(CUTS)
    there = copy.deepcopy(shaped).cuda()
    for packed in (None, documents):
        here = shaped(tokens, documents_bt=packed).logits_btv
        got = there(tokens.cuda(), documents_bt=None if packed is None else packed.cuda()).logits_btv
        torch.testing.assert_close(got.cpu(), here, rtol=1e-4, atol=1e-4)
    half = there.to(torch.bfloat16)(tokens.cuda()).logits_btv
    half.square().sum().backward()
    assert half.isfinite().all()
