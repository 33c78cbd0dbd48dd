"""The cost of batch invariance: CPU time with it divided by CPU time without, for training and for the engine.

Both sides run alternately in one process with one thread, in bf16. Training is forward and backward of one packed batch
of the tiny recipe's pretraining. The engine generates many short turns (_turns.py); its cost is per sampled token.
"""

from __future__ import annotations

import time

import torch
from _turns import short_turns

from etude.model import Transformer, compute_with, config_from_recipe
from etude.recipe.model import ModelRecipe
from etude.recipe.precision import PrecisionRecipe

VOCAB = 1024
BATCH, LENGTH, DOCUMENT = 6, 320, 100
STEPS = 6


def invariant_slowdown() -> dict[str, float]:
    plain, invariant = (network(invariant=chosen) for chosen in (False, True))
    steps = [(training_seconds(plain), training_seconds(invariant)) for _ in range(STEPS + 1)][1:]
    without, with_it = (min(column) for column in zip(*steps, strict=True))
    engines = [short_turns(model, "never")["sampled_tokens_per_cpu_second"] for model in (plain, invariant)]
    return {
        "training": round(with_it / without, 2),
        "training_ms_per_step": round(1000 * without, 1),
        "engine": round(engines[0] / engines[1], 2),
        "engine_tokens_per_cpu_second": round(engines[0]),
    }


def network(*, invariant: bool) -> Transformer:
    model = Transformer(config_from_recipe(ModelRecipe(), VOCAB)).initialise(0).to(torch.bfloat16)
    compute_with(model, PrecisionRecipe(invariant=invariant))
    return model


def training_seconds(model: Transformer) -> float:
    tokens = torch.randint(VOCAB, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))
    documents = (torch.arange(LENGTH) // DOCUMENT).expand(BATCH, -1)
    begun = time.thread_time()
    model(tokens, documents_bt=documents).logits_btv.log_softmax(-1)[..., 0].mean().backward()
    return time.thread_time() - begun
