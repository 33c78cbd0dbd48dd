"""Speed of the reference quantisers on one core and of torchao's, whose codes must be equal; and the cost of training
with emulated low precision.

Speed is input bytes per second of CPU time, the median of alternating runs. CPU time suffers less from other load than
wall-clock time, though shared caches still matter. NVFP4 codes are compared with a power-of-two outer scale and 24-bit
reciprocals, the only setting in which torchao computes exactly as we do.

`emulated_slowdown`: CPU time of a whole training step of recipes/tiny.toml, including the optimizer, divided by that in
bf16: a step of base pretraining, and a step of RL on rows of half the engine's context. Tokens are random.
`invariant_slowdown`: the cost of batch invariance (_invariance.py).
"""

from __future__ import annotations

import logging
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _invariance import invariant_slowdown
from _report import finish
from torch import Tensor

from etude.model import Numerics, Transformer, config_from_recipe, round_with
from etude.model.precision import FORMATS, STORED, quantise_nvfp4
from etude.pretrain.context import Rows, next_token_loss
from etude.recipe import Recipe, load_recipe
from etude.recipe.precision import PrecisionRecipe
from etude.rl.batch import RowBatch
from etude.rl.forward import SampledTokens, forward, predicting_hidden
from etude.rl.loss import policy_loss
from etude.rl.trust import trust_region
from etude.training import MasterWeights, build_optimizer

ROWS, WIDTH, RUNS = 2048, 2048, 12
ROUNDINGS = ("nvfp4", "nvfp4_tensor", "mxfp8", "fp8_block")
STEPS = 5
SAMPLED_SHARE = 0.25
"""Rough share of a rollout's tokens that the model sampled."""
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
Peer = Callable[[Tensor], tuple[Tensor, Tensor]]


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.randn(ROWS, WIDTH) * torch.randn(ROWS, 1).exp2()
    peers = torchao_quantisers(2.0 ** float((x.abs().max() / 2688).log2().ceil()))
    result: dict[str, Any] = {
        "formats": list(FORMATS),
        "exact": {name: all(equal(name, x.to(dtype), peers[name]) for dtype in DTYPES.values()) for name in STORED},
        **speeds(peers, x),
        "peer": "torchao, eager",
        "emulated_slowdown": slowdowns(),
        "invariant_slowdown": invariant_slowdown(),
    }
    finish("precision", result)


def torchao_quantisers(outer: float) -> dict[str, Peer]:
    logging.disable(logging.WARNING)  # torchao warns about compiled extensions that are not needed on CPUs
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import to_mx
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize
    from torchao.quantization.quant_primitives import _choose_scale_float8, _quantize_affine_float8

    logging.disable(logging.NOTSET)

    def fp8(*block: int) -> Peer:
        def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
            scales = _choose_scale_float8(x.float(), list(block))
            return scales, _quantize_affine_float8(x, scales)

        return quantise

    return {
        "mxfp8": lambda x: to_mx(x, torch.float8_e4m3fn, 32, ScaleCalculationMode.RCEIL),
        "nvfp4": lambda x: nvfp4_quantize(x, per_tensor_scale=torch.tensor(outer)),
        "fp8_block": fp8(128, 128),
        "fp8_row": fp8(1, WIDTH),
    }


def equal(name: str, x: Tensor, peer: Peer) -> bool:
    scales, codes = peer(x)
    if name == "nvfp4":
        outer = torch.tensor(2.0 ** float((x.float().abs().max() / 2688).log2().ceil()))
        q: Any = quantise_nvfp4(x, outer=outer, reciprocal_bits=24)
    else:
        q = FORMATS[name].quantise(x)
    ours = (q.scales.contiguous().view(torch.uint8), q.codes.view(torch.uint8))
    theirs = (scales.contiguous().view(torch.uint8), codes.view(torch.uint8))
    return all(torch.equal(a.flatten(), b.flatten()) for a, b in zip(ours, theirs, strict=True))


def speeds(peers: dict[str, Peer], x: Tensor) -> dict[str, dict[str, dict[str, float]]]:
    works: dict[str, dict[str, Callable[[Tensor], object]]] = {
        "quantise_gb_s_core": {name: format.quantise for name, format in FORMATS.items()},
        "fake_gb_s_core": {name: format.fake for name, format in FORMATS.items()},
        "peer_gb_s_core": dict(peers),
    }
    inputs = {kind: x.to(dtype) for kind, dtype in DTYPES.items()}
    taken: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for run in range(RUNS + 1):
        for key, quantisers in works.items():
            for name, quantise in quantisers.items():
                for kind, given in inputs.items():
                    begun = time.thread_time()
                    quantise(given)
                    if run:
                        taken[key, name, kind].append(time.thread_time() - begun)
    sizes = {kind: given.numel() * given.element_size() / 1e9 for kind, given in inputs.items()}
    return {
        key: {
            name: {
                kind: float(f"{size / statistics.median(taken[key, name, kind]):.3g}") for kind, size in sizes.items()
            }
            for name in quantisers
        }
        for key, quantisers in works.items()
    }


def slowdowns() -> dict[str, dict[str, float]]:
    recipe = load_recipe(Path(__file__).parents[1] / "recipes" / "tiny.toml")
    config = config_from_recipe(recipe.model, recipe.tokenizer.vocab_size)
    steps: dict[str, dict[str, Callable[[], object]]] = {"pretrain": {}, "rl": {}}
    for name in ("bf16", *ROUNDINGS):
        for stage, step in (("pretrain", pretraining_step), ("rl", rl_step)):
            model = Transformer(config).initialise(1)
            round_with(model, Numerics.of(PrecisionRecipe(experts=name, emulate=True)))
            steps[stage][name] = step(recipe, model)
    taken: dict[tuple[str, str], list[float]] = defaultdict(list)
    for run in range(STEPS + 1):
        for stage, works in steps.items():
            for name, work in works.items():
                begun = time.thread_time()
                work()
                if run:
                    taken[stage, name].append(time.thread_time() - begun)
    seconds = {key: statistics.median(times) for key, times in taken.items()}
    return {
        stage: {name: float(f"{seconds[stage, name] / seconds[stage, 'bf16']:.3g}") for name in ROUNDINGS}
        for stage in steps
    }


def pretraining_step(recipe: Recipe, model: Transformer) -> Callable[[], object]:
    stage = recipe.pretrain
    optim = build_optimizer(model, stage.optimizer, stage.steps, masters=MasterWeights(model, torch.bfloat16))
    tokens = torch.randint(model.config.vocab_size, (stage.batch, stage.length + 1))
    flat = torch.arange(stage.length).expand(stage.batch, -1)
    rows = Rows(tokens[:, :-1], tokens[:, 1:], torch.ones(flat.shape), flat, torch.zeros_like(flat))

    def step() -> None:
        optim.zero_grad()
        loss, output = next_token_loss(model, rows)
        loss.backward()
        optim.step()
        model.balance(output.load_le, stage.balance_rate)

    return step


def rl_step(recipe: Recipe, model: Transformer) -> Callable[[], object]:
    rl, shape = recipe.rl, (recipe.rl.group, recipe.engine.context // 2)
    optim = build_optimizer(model, rl.optimizer, rl.steps, masters=MasterWeights(model, torch.bfloat16))
    batch = RowBatch(
        torch.randint(model.config.vocab_size, shape).numpy(),
        (torch.rand(shape) < SAMPLED_SHARE).numpy(),
        torch.full(shape, -7.0).numpy(),
        torch.zeros(shape, dtype=torch.int32).numpy(),
        torch.randn(shape[0]).numpy(),
        None,
        tuple(range(shape[0])),
    )

    def step() -> None:
        optim.zero_grad()
        output = forward(model, batch, rl.replay.mode, rl.replay.threshold)
        sampled = SampledTokens.of(batch, model.device)
        policy_loss(
            predicting_hidden(output, sampled),
            model.head,
            sampled,
            temperature=rl.temperature,
            ratio_cap=rl.ratio_cap,
            trust=trust_region(rl),
            constant=rl.loss_constant,
        ).loss.backward()
        optim.step()

    return step


if __name__ == "__main__":
    main()
