"""Speed of forward and backward of our network and of transformers' DeepseekV3ForCausalLM, in recipes/tiny.toml's size.

Both load the same fp32 checkpoint, read the same tokens and must have the same loss. The peer runs with each of its
expert implementations, and the fastest counts. Gradients of all parameters are computed; the optimizer is left out.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from _report import finish
from torch.nn import functional
from transformers import DeepseekV3ForCausalLM

from etude.model import Transformer, config_from_recipe, load_hf, save_hf
from etude.recipe.model import ModelRecipe

VOCAB, BATCH, LENGTH = 1024, 8, 256
RUNS = 3
EXPERTS = ("eager", "grouped_mm", "batched_mm")


def main() -> None:
    torch.set_num_threads(2)
    transformers.logging.disable_progress_bar()
    config = config_from_recipe(ModelRecipe(num_nextn_predict_layers=0), VOCAB)
    tokens = torch.randint(0, VOCAB, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))
    works: dict[str, Callable[[], float]] = {}
    with tempfile.TemporaryDirectory() as place:
        save_hf(Transformer(config).initialise(0), Path(place))
        ours = load_hf(Path(place)).requires_grad_(True).train()
        works["ours"] = lambda: step(lambda: ours(tokens).logits_btv, tokens, ours)
        for experts in EXPERTS:
            try:
                peer = DeepseekV3ForCausalLM.from_pretrained(place, dtype=torch.float32, experts_implementation=experts)
            except (TypeError, ValueError, KeyError):
                continue
            peer.train()
            works[f"peer {experts}"] = lambda peer=peer: step(
                lambda: peer(tokens, use_cache=False).logits, tokens, peer
            )
    taken: dict[str, list[float]] = {}
    losses: dict[str, float] = {}
    for run in range(RUNS + 1):
        for name, work in list(works.items()):
            begun = time.perf_counter()
            try:
                losses[name] = work()
            except (RuntimeError, NotImplementedError) as error:
                print(f"{name} does not run here: {str(error).splitlines()[0]}")
                del works[name]
                continue
            if run:
                taken.setdefault(name, []).append(time.perf_counter() - begun)
    speed = {name: BATCH * LENGTH / statistics.median(taken[name]) for name in works}
    best = max((name for name in works if name != "ours"), key=lambda name: speed[name])
    finish(
        "train",
        {
            "peer": f"transformers DeepseekV3ForCausalLM ({best.removeprefix('peer ')} experts)",
            "tokens_per_second": speed["ours"],
            "peer_tokens_per_second": speed[best],
            "ratio": speed["ours"] / speed[best],
            "loss_difference": abs(losses["ours"] - losses[best]),
            "peers_tried": len(works) - 1,
        },
    )


def step(logits: Callable[[], torch.Tensor], tokens: torch.Tensor, model: torch.nn.Module) -> float:
    model.zero_grad(set_to_none=True)
    predicted = logits()[:, :-1].flatten(0, 1)
    loss = functional.cross_entropy(predicted, tokens[:, 1:].flatten())
    loss.backward()
    return float(loss.detach())


if __name__ == "__main__":
    main()
