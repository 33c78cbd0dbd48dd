"""Every stage in parts: none is larger than the recipe allows, together they are the batch; logits in smaller ones."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from etude.model import Head, Transformer, read_config, save_hf
from etude.pretrain import StageContext, run_stage
from etude.pretrain.stage import _identity, _plan
from etude.recipe import Recipe
from etude.recipe.training import StageRecipe
from etude.training import CheckpointError, Compute, back_propagate

from .make import small_recipe

PUBLISHED = {
    "vocab_size": 512,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.2,
}
ONE_THREAD = Compute("cpu", "float32", 1, "a test")


def with_budget(recipe, stage, budget):
    return recipe.model_copy(update={stage: getattr(recipe, stage).model_copy(update={"microbatch_tokens": budget})})


@pytest.mark.parametrize(
    ("stage", "step"), [("pretrain", 0), ("pretrain", 6), ("long", 0), ("mtp", 0), ("mtp", 8), ("sft", 0)]
)
def test_parts_add_up_to_the_batch(finished, stage, step):
    """The steps are one of each kind: look-up documents in pretrain, joint steps in mtp."""
    run, recipe, _ = finished
    found = []
    for budget in (16_384, 64):
        plan = _plan(StageContext(run, with_budget(recipe, stage, budget), ONE_THREAD, stage))
        sizes = []
        plan.model.register_forward_pre_hook(lambda _module, inputs, sizes=sizes: sizes.append(inputs[0].numel()))
        loss, tokens, metrics = back_propagate(plan.optim, plan.compute_loss(step))
        if plan.after_step is not None:
            plan.after_step(step)
        assert sum(sizes) == tokens
        found.append((sizes, loss, metrics, plan.optim.masters.gradients, dict(plan.model.named_buffers())))
    (whole, loss, metrics, gradients, biases), (parts, *others) = found
    assert len(whole) == 1
    assert len(parts) > 1
    assert max(parts) == max(64, recipe.long.length if stage == "long" else 0)
    assert others[0] == pytest.approx(loss, rel=1e-5)
    assert others[1] == pytest.approx(metrics, rel=1e-5)
    assert others[2].keys() == gradients.keys()
    largest = max(float(gradient.abs().max()) for gradient in gradients.values())
    for name, gradient in gradients.items():
        torch.testing.assert_close(others[2][name], gradient, rtol=1e-4, atol=1e-5 * largest)
    assert all(torch.equal(bias, others[3][name]) for name, bias in biases.items())


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe"])
def test_load_is_evened_by_the_loss_that_the_network_asks_for(before, family):
    """Only where there are experts; the loss that is reported is the next-token loss alone."""
    run, recipe = before("pretrain")
    begun = Recipe.model_validate(
        {**recipe.model_dump(by_alias=True), "model": {"from": "a shape", "weights": "random"}}
    )
    found = []
    for coefficient in (0.0, 10.0):
        config = read_config(PUBLISHED | {"model_type": family, "router_aux_loss_coef": coefficient})
        save_hf(Transformer(config).initialise(0), run / "stages/base/model")
        plan = _plan(StageContext(run, begun, ONE_THREAD, "pretrain"))
        loss, _, metrics = back_propagate(plan.optim, plan.compute_loss(6))
        plan.after_step(6)
        found.append((loss, metrics, plan.optim.masters.gradients))
    (loss, plain, gradients), (again, metrics, balanced) = found
    assert again == pytest.approx(loss, rel=1e-6)
    assert not plain
    experts = family == "qwen3_moe"
    assert list(metrics) == (["balance_loss"] if experts else [])
    moved = {name for name, value in gradients.items() if not torch.equal(value, balanced[name])}
    assert ("layers.1.mlp.gate.weight" in moved) is experts
    assert bool(moved) is experts
    if experts:
        assert 2 < metrics["balance_loss"] < 4, "it is the number of experts per token, if the load is even"


@pytest.mark.parametrize("stage", ["mtp", "sft"])
def test_no_stage_holds_the_logits_of_a_batch(finished, stage, monkeypatch):
    run, recipe, _ = finished
    rows = []
    for name in ("product", "logits"):
        original = getattr(Head, name)

        def counted(self, hidden, *room, original=original):
            rows.append(hidden.numel() // hidden.shape[-1])
            return original(self, hidden, *room)

        monkeypatch.setattr(Head, name, counted)
    monkeypatch.setattr("etude.model.head_losses._CHUNK_ROWS", 32)
    monkeypatch.setattr("etude.pretrain.measure.HELD_OUT_TOKENS", 256)
    plan = _plan(StageContext(run, recipe, ONE_THREAD, stage))
    back_propagate(plan.optim, plan.compute_loss(0))
    plan.measure()
    assert max(rows) == 32


def test_checkpoints_from_before_there_were_microbatches_still_resume():
    recipe = small_recipe(Path("code"))
    plan = SimpleNamespace(recipe=recipe.pretrain, inputs={"corpus": "0"})
    known = "4cb3efc659cb3838c6f2e3f144473b8038bdb7edc4267becab4fee1eb93764ec"
    assert _identity(SimpleNamespace(name="pretrain", recipe=recipe), plan) == known


def test_checkpoints_that_earlier_versions_wrote_in_parts_still_resume(before, monkeypatch):
    """In those versions a checkpoint was of one size of parts. Another one may follow once a later one is written."""
    recipe = small_recipe(Path("code"), pretrain={"microbatch_tokens": 64})
    plan = SimpleNamespace(recipe=recipe.pretrain, inputs={"corpus": "0"})
    known = "a3b24d001284d3a26e6e95ca42ed55e5873ccf4627c779d491f2828103209a07"
    assert _identity(SimpleNamespace(name="pretrain", recipe=recipe), plan, earlier=True) == known

    def resumed(budget: int, until: int) -> int:
        """Go on until a checkpoint of the step before `until` is written, and return the step gone on from."""
        first = None
        for progress in run_stage("pretrain", run, with_budget(recipe, "pretrain", budget)):
            first = progress["step"] if first is None else first
            if progress["step"] == until:
                break
        return first

    run, recipe = before("pretrain")
    section = recipe.pretrain.model_copy(update={"checkpoint_seconds": 0.0, "log_every": 1})
    recipe = recipe.model_copy(update={"pretrain": section})
    with monkeypatch.context() as earlier:
        earlier.setattr(StageRecipe, "FITTING", frozenset())
        resumed(64, until=2)
    with pytest.raises(CheckpointError, match="another recipe"):
        resumed(128, until=3)
    assert resumed(64, until=3) == 1
    assert resumed(128, until=4) == 2
