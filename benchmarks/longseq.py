"""One full optimizer step on a single sequence of 262,144 tokens, in a process of its own.

The network has two layers (one dense, one a mixture of eight experts) and two heads of latent attention; its other
sizes are those of recipes/tiny.toml, but for a vocabulary of 16,384, whose logits alone would take 17 GB. It was
"trained" at 4,096 positions, and YaRN extends it by 64. The step is that of the stage `long`: packed row, next-token
loss in chunks, checkpointed layers, fp32 masters, Muon. `peak_gib` is the high-water mark of the whole process's
resident memory, interpreter and torch included.

    python benchmarks/longseq.py [TOKENS...]

Attention takes time by the square of the length, and nearly all of it: four times the tokens, some fourteen times the
seconds.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

import torch
from _report import finish

TOKENS, BASE, VOCAB = 262_144, 4096, 16_384
LIMIT_GIB = 20


def main() -> None:
    if sys.argv[1:2] == ["--step"]:
        print(json.dumps(step(int(sys.argv[2]))))
        return
    for tokens in map(int, sys.argv[1:] or [str(TOKENS)]):
        ran = subprocess.run([sys.executable, __file__, "--step", str(tokens)], check=True, stdout=subprocess.PIPE)
        result = json.loads(ran.stdout)
        print(f"{tokens:,} tokens: {result['seconds']:,.0f} s, {result['peak_gib']:.2f} GiB, loss {result['loss']:.3f}")
    if result["peak_gib"] > LIMIT_GIB:
        sys.exit(f"the step took {result['peak_gib']:.1f} GiB, more than {LIMIT_GIB}")
    finish("longseq", result)


def step(tokens: int) -> dict[str, float]:
    """Take the step and return its loss, seconds and peak memory."""
    from etude.model import Transformer, config_from_recipe
    from etude.pretrain.context import Rows, next_token_losses
    from etude.recipe.model import ModelRecipe
    from etude.recipe.training import OptimizerRecipe
    from etude.training import build_optimizer
    from etude.training.loop import back_propagate

    torch.set_num_threads(2)
    shape = ModelRecipe(
        num_hidden_layers=2, num_attention_heads=2, num_nextn_predict_layers=0, max_position_embeddings=BASE
    )
    config = config_from_recipe(shape, VOCAB)
    model = Transformer(config.extended(TOKENS / BASE, BASE)).initialise(1)
    model.checkpoint_activations(True)
    optim = build_optimizer(model, OptimizerRecipe(name="muon", lr=1e-3), 1)
    before = {name: master.clone() for name, master in optim.masters.masters.items()}
    ids = torch.randint(VOCAB, (1, tokens + 1), generator=torch.Generator().manual_seed(0))
    rows = Rows(
        tokens=ids[:, :-1].contiguous(),
        targets=ids[:, 1:].contiguous(),
        weights=torch.ones(1, tokens),
        positions=torch.arange(tokens)[None],
        documents=torch.zeros(1, tokens, dtype=torch.int64),
    )
    begun, loads = time.perf_counter(), list[torch.Tensor]()
    loss, _, _ = back_propagate(optim, next_token_losses(model, rows, tokens, loads))
    optim.step()
    seconds = time.perf_counter() - begun
    still = [name for name, master in optim.masters.masters.items() if torch.equal(master, before[name])]
    assert not still, f"the step did not train {still}"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"tokens": tokens, "peak_gib": round(peak, 2), "seconds": round(seconds, 1), "loss": round(loss, 4)}


if __name__ == "__main__":
    main()
