"""AdamW against torch, clipping, frozen parameters, masters, and a resume that changes no bit."""

import pytest
import torch
from torch import nn

from etude.recipe.training import OptimizerRecipe
from etude.training import MasterWeights, NonFiniteError, TrainingError, build_optimizer


def small(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4))


def give_gradients(model, seed, scale=1.0):
    for place, parameter in enumerate(model.parameters()):
        generator = torch.Generator().manual_seed(seed * 100 + place)
        parameter.grad = (torch.randn(parameter.shape, generator=generator) * scale).to(parameter.dtype)


def recipe(name="adamw", **changes):
    return OptimizerRecipe(name=name, lr=1e-2, warmup_steps=0, final_lr_share=1.0, grad_clip=1e9).model_copy(
        update=changes
    )


def test_adamw_equals_torch():
    ours, theirs = small(), small()
    optim = build_optimizer(ours, recipe(weight_decay=0.1), 10)
    matrices = [p for p in theirs.parameters() if p.ndim > 1]
    vectors = [p for p in theirs.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
    for step in range(5):
        give_gradients(ours, step)
        give_gradients(theirs, step)
        optim.step()
        reference.step()
    for left, right in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(left, right, atol=1e-6)


def test_the_norm_is_reported_and_clipped():
    model = small()
    optim = build_optimizer(model, recipe(grad_clip=1.0), 10)
    give_gradients(model, 1, scale=100)
    expected = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    clipped = optim.step()
    assert clipped["grad_norm"] == pytest.approx(float(expected), rel=1e-5)
    first = torch.cat([m.flatten() for m in optim.state_dict()["moments"].values()])
    assert float(first.norm()) == pytest.approx(0.1, rel=1e-4)


def test_the_heads_norm_does_not_scale_the_trunks_gradient():
    model = nn.ModuleDict({"trunk": nn.Linear(4, 4), "mtp": nn.Linear(4, 4)})
    optim = build_optimizer(model, recipe(grad_clip=1.0), 10)
    for part, norm in (("trunk", 0.5), ("mtp", 100.0)):
        for parameter in model[part].parameters():
            parameter.grad = torch.full_like(parameter, norm / 20**0.5)
    assert optim.step()["grad_norm"] == pytest.approx(0.5)
    moments = optim.state_dict()["moments"]
    for part, norm in (("trunk", 0.5), ("mtp", 1.0)):
        moved = torch.cat([moments[f"{part}.{name}"].flatten() for name in ("weight", "bias")])
        assert float(moved.norm()) == pytest.approx(0.1 * norm, rel=1e-4)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_parameters_without_a_gradient_do_not_move(name):
    model = small()
    optim = build_optimizer(model, recipe(name, weight_decay=0.5), 10)
    before = [p.detach().clone() for p in model.parameters()]
    give_gradients(model, 1)
    model[0].weight.grad = None
    model[1].bias.grad = None
    optim.step()
    moved = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert moved == [False, True, True, False, True, True]


def test_a_gradient_that_is_not_finite_changes_nothing():
    model = small()
    optim = build_optimizer(model, recipe(), 10)
    before = [p.detach().clone() for p in model.parameters()]
    give_gradients(model, 1)
    model[0].weight.grad[0, 0] = float("nan")
    with pytest.raises(NonFiniteError, match="step 0"):
        optim.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_resumed_optimizer_changes_no_bit(name, dtype):
    def made():
        model = small()
        return model, build_optimizer(model, recipe(name), 10, masters=MasterWeights(model, dtype))

    straight, straight_optim = made()
    for step in range(6):
        give_gradients(straight, step)
        straight_optim.step()
    first, first_optim = made()
    for step in range(3):
        give_gradients(first, step)
        first_optim.step()
    second, second_optim = made()
    second_optim.load_state_dict(first_optim.state_dict())
    for step in range(3, 6):
        give_gradients(second, step)
        second_optim.step()
    for left, right in zip(straight.parameters(), second.parameters(), strict=True):
        assert torch.equal(left, right)
    for key, master in straight_optim.masters.state_dict().items():
        assert torch.equal(master, second_optim.masters.state_dict()[key])


def test_masters_keep_steps_that_bf16_would_lose():
    model = nn.Linear(4, 4, bias=False)
    nn.init.ones_(model.weight)
    masters = MasterWeights(model, torch.bfloat16)
    optim = build_optimizer(model, recipe(lr=1e-4), 1000, masters=masters)
    for _ in range(100):
        model.weight.grad = torch.ones_like(model.weight)
        optim.step()
    assert model.weight.dtype == torch.bfloat16
    assert float(masters.masters["weight"][0, 0]) == pytest.approx(0.99, abs=1e-4)
    masters.restore()
    assert model.weight.dtype == torch.float32
    assert float(model.weight.detach()[0, 0]) == pytest.approx(0.99, abs=1e-4)


def test_restoring_keeps_the_fp32_values_of_frozen_parameters():
    model = small()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    masters = MasterWeights(model, torch.bfloat16)
    masters.restore()
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())


def test_a_state_of_another_model_is_refused():
    state = build_optimizer(nn.Linear(3, 3), recipe(), 10).state_dict()
    with pytest.raises(TrainingError, match="another model"):
        build_optimizer(small(), recipe(), 10).load_state_dict(state)
    with pytest.raises(TrainingError, match=r"weight is \[3, 3\], expected \[4, 3\]"):
        build_optimizer(nn.Linear(3, 4), recipe(), 10).load_state_dict(state)
