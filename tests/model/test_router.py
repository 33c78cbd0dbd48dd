from __future__ import annotations

from typing import Any, Literal

import pytest
import torch

from etude.model import UNKNOWN, ModelError, Replay, ReplayMismatch, Transformer
from etude.model.config import MixtureShape
from etude.model.router import Router
from etude.trace import UNKNOWN_EXPERT

SHAPES: list[dict[str, Any]] = [{}, {"n_group": 4, "topk_group": 2, "num_experts_per_tok": 3}]


def router_of(config_of: Any, **changes: Any) -> Router:
    config = config_of(**changes)
    router = Router(config.mixture, config.hidden_size)
    torch.nn.init.normal_(router.weight, generator=torch.Generator().manual_seed(1))
    return router


@pytest.mark.parametrize("mode", ["on", "filter"])
@pytest.mark.parametrize("shape", SHAPES)
def test_replaying_the_own_experts_changes_no_bit(
    model_of: Any, tokens_of: Any, shape: dict[str, Any], mode: Literal["on", "filter"]
) -> None:
    model, tokens = model_of(**shape), tokens_of(3, 20)
    plain = model(tokens)
    again = model(tokens, replay=Replay(plain.experts_btlk, mode, threshold=1.0))
    assert torch.equal(plain.logits_btv, again.logits_btv)
    assert torch.equal(plain.experts_btlk, again.experts_btlk)
    assert plain.overridden_bt is plain.refused_bt is None
    assert not again.overridden_bt.any()
    assert not again.refused_bt.any()


def test_unknown_is_what_a_trace_says() -> None:
    assert UNKNOWN == UNKNOWN_EXPERT


def test_unknown_rows_are_routed_here(model_of: Any, tokens_of: Any) -> None:
    model, tokens = model_of(), tokens_of(2, 10)
    plain = model(tokens)
    unknown = torch.full_like(plain.experts_btlk, UNKNOWN).to(torch.uint16)
    again = model(tokens, replay=Replay(unknown))
    assert torch.equal(plain.logits_btv, again.logits_btv)
    assert not again.overridden_bt.any()
    assert not again.refused_bt.any()


def test_mode_on_uses_what_it_is_given_and_marks_it(model_of: Any, tokens_of: Any) -> None:
    model, tokens = model_of(), tokens_of(2, 10)
    own = model(tokens).experts_btlk
    foreign = torch.stack([own[..., 0], (own[..., 0] + 1) % 8], dim=-1)
    foreign[0, :4] = UNKNOWN
    output = model(tokens, replay=Replay(foreign, "on"))
    known = foreign != UNKNOWN
    assert torch.equal(output.experts_btlk[known], foreign[known])
    # The first layer's own choice does not depend on the replay, so its tokens can be told from outside.
    first = (known[:, :, 0] & ~(foreign[:, :, 0, :, None] == own[:, :, 0, None, :]).any(-1)).any(-1)
    assert first.any()
    assert output.overridden_bt[first].all()
    assert not output.overridden_bt[0, :4].any()
    assert not output.refused_bt.any()


def test_the_filter_against_a_plain_loop(config_of: Any) -> None:
    for shape in SHAPES:
        router = router_of(config_of, **shape)
        router.e_score_correction_bias.normal_(0, 0.3, generator=torch.Generator().manual_seed(2))
        k = router.shape.per_token
        g = torch.Generator().manual_seed(3)
        x = torch.randn(50, 32, generator=g) * 0.3
        replayed = torch.rand(50, 8, generator=g).topk(k).indices
        replayed[7] = UNKNOWN
        routing = router(x, Replay(replayed, "filter", 0.8), replayed)
        own = router(x).experts_nk
        scores = (x @ router.weight.T).sigmoid().detach()
        choice = router._candidates(scores + router.e_score_correction_bias)
        overridden, refused = [], []
        for row in range(50):
            mine = own[row].tolist()
            if row == 7:
                assert routing.experts_nk[row].tolist() == mine
                continue
            bar = 0.8 * min(float(scores[row, e]) for e in mine)
            wanted = replayed[row].tolist()
            kept = [e for e in wanted if float(scores[row, e]) >= bar]
            spare = [e for e in choice[row].argsort(descending=True).tolist() if e not in kept]
            expected = [e if e in kept else spare.pop(0) for e in wanted]
            assert routing.experts_nk[row].tolist() == expected
            assert len(set(expected)) == k
            overridden += [row] if any(e not in mine for e in kept) else []
            refused += [row] if len(kept) < k else []
        assert routing.overridden_n.nonzero().flatten().tolist() == overridden
        assert routing.refused_n.nonzero().flatten().tolist() == refused
        assert overridden
        assert refused


def test_gates_are_recomputed_so_that_the_router_learns(model_of: Any, tokens_of: Any) -> None:
    model, tokens = model_of(), tokens_of(2, 10)
    shifted = (model(tokens).experts_btlk + 1) % 8
    model(tokens, replay=Replay(shifted, "on")).logits_btv.square().sum().backward()
    for layer in model.layers[1:]:
        assert layer.mlp.gate.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda e: e[:, :-1], "shape"),
        (lambda e: torch.full_like(e, 8), "distinct"),
        (lambda e: torch.zeros_like(e), "distinct"),
        (lambda e: torch.full_like(e, -1), "distinct"),
    ],
)
def test_impossible_experts_are_refused(model_of: Any, tokens_of: Any, damage: Any, message: str) -> None:
    model, tokens = model_of(), tokens_of(2, 10)
    with pytest.raises(ReplayMismatch, match=message):
        model(tokens, replay=Replay(damage(model(tokens).experts_btlk)))


def test_the_bias_chooses_but_does_not_weigh(config_of: Any) -> None:
    router = router_of(config_of, routed_scaling_factor=2.5)
    x = torch.randn(20, 32, generator=torch.Generator().manual_seed(0))
    router.e_score_correction_bias[3] = 10.0
    routing = router(x)
    assert bool((routing.experts_nk == 3).any(-1).all())
    scores = (x @ router.weight.T).sigmoid().gather(1, routing.experts_nk)
    torch.testing.assert_close(routing.gates_nk, 2.5 * scores / scores.sum(-1, keepdim=True))


def test_balance_moves_the_load_towards_even(model_of: Any, tokens_of: Any) -> None:
    model: Transformer = model_of(seed=5)
    tokens = tokens_of(8, 64)

    def spread() -> float:
        load = model(tokens).load_le.float()
        return float((load.max(1).values / load.mean(1)).mean())

    before = spread()
    with torch.no_grad():
        for _ in range(150):
            model.balance(model(tokens).load_le, 5e-3)
    assert before > 1.5
    assert spread() < 1.25


def test_padding_has_no_load(model_of: Any, tokens_of: Any) -> None:
    documents = torch.zeros(2, 10, dtype=torch.int64)
    documents[1, 4:] = -1
    load = model_of()(tokens_of(2, 10), documents_bt=documents).load_le
    assert load.sum(1).tolist() == [14 * 2, 14 * 2]


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize("normalise", [False, True])
def test_a_softmax_router_without_a_bias(invariant: bool, normalise: bool) -> None:
    router = Router(
        MixtureShape((), 8, 3, 16, scoring="softmax", selection_bias=False, normalise=normalise, scale=2), 32
    )
    torch.nn.init.normal_(router.weight, generator=torch.Generator().manual_seed(1))
    router.invariant = invariant
    x = torch.randn(70, 32, generator=torch.Generator().manual_seed(2))
    routing = router(x)
    exponentials = (x @ router.weight.T).double().exp()
    scores = exponentials / exponentials.sum(-1, keepdim=True)
    best, experts = scores.topk(3)
    assert torch.equal(routing.experts_nk, experts)
    gates = 2 * (best / best.sum(-1, keepdim=True) if normalise else best)
    torch.testing.assert_close(routing.gates_nk.double(), gates, rtol=1e-5, atol=1e-6)
    if invariant:
        assert torch.equal(torch.cat([router(one).gates_nk for one in x.split(3)]), routing.gates_nk)
    assert list(router.state_dict()) == ["weight"]
    with pytest.raises(ModelError, match="no bias"):
        router.balance(torch.ones(8), 0.1)
