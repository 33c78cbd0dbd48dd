"""A rounded network: trained, served, in versions and in checkpoints; what reaches whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.model.conftest import GROUPED, TINY
from torch import Tensor

from etude.model import (
    Cache,
    CannotQuantise,
    Numerics,
    Transformer,
    compute_with,
    config_from_recipe,
    load_codes,
    load_hf,
    prepare,
    read_config,
    restore,
    round_with,
    save_hf,
    serve,
    served_state,
)
from etude.model.precision import NVFP4
from etude.recipe.model import ModelRecipe
from etude.recipe.precision import PrecisionRecipe
from etude.weights import WeightStore
from etude.weights.torch_bridge import from_state_dict, into_module

VOCAB, LENGTH = 61, 16
ROUNDINGS = ["nvfp4", "nvfp4_tensor", "mxfp8", "fp8_block"]
PER_ROW = ["none", "nvfp4", "mxfp8", "fp8_block", "bf16"]
SHAPE: dict[str, Any] = TINY | {
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "v_head_dim": 16,
}


def model_of(
    rounding: str, also: tuple[str, ...] = (), dtype: torch.dtype = torch.float32, seed: int = 1, **changes: Any
) -> Transformer:
    config = config_from_recipe(ModelRecipe(**{**SHAPE, **changes}), VOCAB)
    model = Transformer(config).initialise(seed).to(dtype)
    round_with(model, None if rounding == "none" else Numerics(rounding, frozenset(also)))
    return model


def tokens_of(seed: int, batch: int = 3) -> Tensor:
    return torch.randint(0, VOCAB, (batch, LENGTH), generator=torch.Generator().manual_seed(seed))


def fed_one_by_one(model: Transformer, tokens_bt: Tensor) -> Tensor:
    """Logits as an engine makes them, which decodes."""
    rows = torch.arange(len(tokens_bt))
    cache = Cache(model.config, len(rows), LENGTH, model.embed_tokens.weight.dtype)
    logits = []
    for position in range(LENGTH):
        step = cache.step(rows, torch.full_like(rows, position), torch.ones_like(rows))
        fed = model.extend(tokens_bt[step.rows_t, step.positions_t], step)
        logits.append(fed.logits_rv[step.first_b])
    return torch.stack(logits, 1)


def mismatch(model: Transformer, tokens_bt: Tensor) -> Tensor:
    """|difference of log-probs| of the next tokens, between whole sequences and decoding."""
    with torch.no_grad():
        whole = model(tokens_bt).logits_btv
    serve(model)
    following = tokens_bt[:, 1:, None]
    one, other = (x.log_softmax(-1)[:, :-1].gather(-1, following) for x in (whole, fed_one_by_one(model, tokens_bt)))
    return (one - other).abs().flatten()


@pytest.mark.parametrize("also", [(), ("shared", "attention")])
@pytest.mark.parametrize("rounding", PER_ROW)
def test_trainer_and_engine_agree(rounding: str, also: tuple[str, ...]) -> None:
    """As closely as without rounding, but for the rare number beside a tie that sums in another order take across."""
    if rounding == "none":
        also = ()
    found = mismatch(model_of(rounding, also), tokens_of(0, batch=4))
    assert float(found.quantile(0.95)) < 2e-5
    assert float(found.mean()) < 1e-3


def test_with_one_scale_per_tensor_they_do_not() -> None:
    """A decode step has other tokens beside each than a whole sequence has."""
    assert float(mismatch(model_of("nvfp4_tensor"), tokens_of(0, batch=4)).mean()) > 1e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_a_version_holds_the_codes_and_an_engine_computes_with_them(
    rounding: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    trainer, engine = (model_of(rounding, dtype=dtype, seed=seed) for seed in (1, 2))
    tokens = tokens_of(0)
    with torch.no_grad():
        expected = trainer(tokens).logits_btv
    store = WeightStore(tmp_path)
    store.publish(0, from_state_dict(served_state(trainer)))
    serve(engine)
    into_module(engine, store.read(0))
    prepare(engine)
    with torch.no_grad():
        assert torch.equal(engine(tokens).logits_btv, expected)
    held = engine.state_dict()
    for layer in (*trainer.layers[1:], trainer.mtp[0].block):
        experts, numerics = layer.mlp.experts, layer.mlp.experts.numerics
        prefix = next(name for name, module in trainer.named_modules() if module is experts)
        gate, up = numerics.codes((experts.gate_proj, experts.up_proj))
        (down,) = numerics.codes((experts.down_proj,))
        for name, q in (("gate_proj", gate), ("up_proj", up), ("down_proj", down)):
            for part in ("codes", "scales", "outer") if isinstance(q, NVFP4) else ("codes", "scales"):
                ours, theirs = getattr(q, part), held[f"{prefix}.{name}.{part}"]
                assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))
        assert f"{prefix}.gate_proj" not in held


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_weights_come_back_as_the_codes_have_them(rounding: str, tmp_path: Path) -> None:
    """A checkpoint of a served network is rounded to the same codes again."""
    model = model_of(rounding, dtype=torch.bfloat16)
    names = model.state_dict().keys()
    before = served_state(model)
    tokens = tokens_of(0)
    with torch.no_grad():
        expected = model(tokens).logits_btv
    serve(model)
    restore(model)
    assert model.state_dict().keys() == names
    save_hf(model, tmp_path)
    again = load_hf(tmp_path)
    numerics = Numerics(rounding)
    round_with(again, numerics)
    with torch.no_grad():
        assert torch.equal(again(tokens).logits_btv, expected)
    if rounding != "mxfp8":  # which has two ways to write some blocks
        after = served_state(again)
        assert all(torch.equal(before[n].view(torch.uint8), after[n].view(torch.uint8)) for n in before if "codes" in n)


def test_a_published_checkpoint_holds_the_codes_that_were_trained_with(tmp_path: Path) -> None:
    model = model_of("nvfp4", dtype=torch.bfloat16)
    save_hf(model, tmp_path, experts="nvfp4")
    published, served = load_codes(tmp_path), served_state(model)
    for expert in range(model.config.n_routed_experts):
        for name in ("gate_proj", "up_proj", "down_proj"):
            q = published[f"model.layers.1.mlp.experts.{expert}.{name}.weight"]
            codes = served[f"model.layers.1.mlp.experts.{name}.codes"][expert]
            assert torch.equal(q.codes, codes)


@pytest.mark.parametrize(
    ("also", "expected"),
    [
        ((), set()),
        (("shared",), {"gate_proj", "up_proj", "down_proj"}),
        (("attention",), {"q_proj", "kv_a_proj_with_mqa", "o_proj"}),
    ],
)
def test_what_else_is_rounded(also: tuple[str, ...], expected: set[str]) -> None:
    model = model_of("mxfp8", also)
    rounded = [name for name, module in model.named_modules() if getattr(module, "numerics", None) is not None]
    beside = [name for name in rounded if not name.endswith("mlp.experts")]
    assert len(rounded) - len(beside) == 3, "two layers and an MTP head"
    assert {name.rpartition(".")[2] for name in beside} == expected
    assert not any(name.startswith("layers.0.mlp") for name in rounded), "the dense layer stays as it is"


def test_widths_that_have_no_whole_blocks_are_refused_by_name() -> None:
    with pytest.raises(CannotQuantise, match=r"layers\.1\.mlp\.experts\.gate_proj is \[24, 64\].*multiples of 32"):
        model_of("mxfp8", moe_intermediate_size=24)
    assert model_of("fp8_block", moe_intermediate_size=24)


def test_a_network_without_experts_is_not_rounded_in_silence(tmp_path: Path) -> None:
    changes = {"model_type": "llama", "attention_bias": True, "hidden_size": 64, "head_dim": 16}
    model = Transformer(read_config({**GROUPED, **changes})).initialise(0)
    with pytest.raises(CannotQuantise, match="no experts"):
        round_with(model, Numerics("mxfp8"))
    with pytest.raises(CannotQuantise, match="no experts"):
        save_hf(model, tmp_path, experts="mxfp8")
    exact = model(tokens_of(0)).logits_btv
    round_with(model, Numerics("mxfp8", frozenset({"attention"})))
    assert not torch.equal(model(tokens_of(0)).logits_btv, exact), "but its attention may be"


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_what_was_served_and_is_restored_learns_on(rounding: str) -> None:
    model = model_of(rounding, ("shared", "attention"))
    serve(model)
    restore(model)
    before = model(tokens_of(0)).logits_btv
    before.logsumexp(-1).mean().backward()
    for part in ("self_attn.o_proj.weight", "mlp.shared_experts.up_proj.weight", "mlp.experts.up_proj"):
        weight = model.get_parameter(f"layers.1.{part}")
        assert weight.grad is not None, part
        with torch.no_grad():
            weight -= weight.grad / weight.grad.abs().max()
        after = model(tokens_of(0)).logits_btv
        assert not torch.equal(after, before), f"{part} is not computed with"
        before = after


def test_a_recipe_says_all_whatever_was_said_before() -> None:
    plain, model = model_of("none"), model_of("nvfp4", ("shared", "attention"))
    tokens = tokens_of(0)
    with torch.no_grad():
        compute_with(model, PrecisionRecipe(experts="nvfp4", emulate=True))
        assert torch.equal(model(tokens).logits_btv, model_of("nvfp4")(tokens).logits_btv)
        compute_with(model, PrecisionRecipe())
        assert torch.equal(model(tokens).logits_btv, plain(tokens).logits_btv)
