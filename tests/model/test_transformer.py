from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from etude.model import Transformer, attend, compute_with
from etude.recipe.precision import PrecisionRecipe

CUTS = [5, 1, 12, 6]


def packed_documents(lengths: list[int]) -> torch.Tensor:
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))[None]


IDS = packed_documents(CUTS)


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

    def keep(_module: Any, inputs: tuple[Any, ...]) -> None:
        inputs[0].retain_grad()
        embedded.append(inputs[0])

    with_hook = model.layers[0].register_forward_pre_hook(keep)
    model(tokens, documents_bt=packed_documents(CUTS)).logits_btv[0, 6:18].square().sum().backward()
    with_hook.remove()
    touched = embedded[0].grad[0].abs().sum(-1) > 0
    assert touched.tolist() == [6 <= t < 18 for t in range(sum(CUTS))]


def test_a_document_is_a_run_of_equal_ids(model_of: Any, tokens_of: Any) -> None:
    model, tokens = model_of(), tokens_of(1, sum(CUTS))
    distinct, repeated = (model(tokens, documents_bt=ids).logits_btv for ids in (IDS, IDS % 2))
    assert torch.equal(distinct, repeated)


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_long_rows_equal_short_ones(
    model_of: Any, tokens_of: Any, packed: bool, invariant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokens = model_of(), tokens_of(2, 300)
    documents = None
    if packed:
        documents = torch.cat([packed_documents(lengths) for lengths in ([100, 150, 50], [1, 299])])
        documents[0, 250:] = -1
    compute_with(model, PrecisionRecipe(invariant=invariant))
    weight = torch.randn(2, 300, 61, generator=torch.Generator().manual_seed(0))

    def run() -> list[torch.Tensor]:
        model.zero_grad()
        logits = model(tokens, documents_bt=documents).logits_btv
        (logits * weight).sum().backward()
        return [logits.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

    short = run()
    monkeypatch.setattr(attend, "LONG_IN_FP32", 256)
    torch.testing.assert_close(run(), short, rtol=1e-4, atol=1e-3)


def test_long_packed_rows_keep_nothing_of_length_squared(model_of: Any, tokens_of: Any) -> None:
    length = 8192
    model = model_of(num_hidden_layers=1, num_nextn_predict_layers=0)
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(tokens_of(1, length), documents_bt=packed_documents([512] * 16), logits=False)
    assert sum(kept.values()) < length**2


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
