"""A run folder whose model is real, tiny, and has learnt one conversation by heart: how to mend the sample repository.

An untrained model writes no call; one that learnt to mend takes minutes. This one takes seconds, and everything between
the command and its weights is the real thing.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import torch

from etude.cli.chat import SAMPLE_TASK
from etude.harness import (
    ChatSession,
    RecordingPolicy,
    ScriptedPolicy,
    load_profile,
    session_schemas,
    write_sample,
)
from etude.journal import RunPaths
from etude.lineage import LineageState
from etude.model import Transformer, config_from_recipe, save_hf
from etude.recipe import Recipe, save_recipe
from etude.sandbox import open_sandboxes
from etude.text import CompactFormat, Tokenizer
from etude.trace.builder import TraceBuilder

CALLS = ("shell python check.py", "edit shop.py 5 if total > 20:", "finish")
RECIPE = {
    "name": "by-heart",
    "compute": {"dtype": "float32", "threads": 1},
    "model": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "moe_intermediate_size": 32,
        "n_routed_experts": 4,
        "num_attention_heads": 2,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 32,
        "embedding_scale": 8.0,
    },
    "tokenizer": {"vocab_size": 600},
    "harness": {"summary_trigger": 0},
    "engine": {"context": 384},
}
_STEPS = 400
_LEARNT = 0.01


def run_by_heart(root: Path) -> RunPaths:
    recipe, paths = Recipe.model_validate(RECIPE), RunPaths(root)
    root.mkdir(parents=True)
    sample = write_sample(root.parent / "learnt-on")
    profile = load_profile(recipe.harness.profile)
    texts = [*profile.texts(), SAMPLE_TASK, *CALLS, *(file.read_text() for file in sample.iterdir())]
    tokenizer = Tokenizer.train(texts * 3, recipe.tokenizer.vocab_size)
    ids = asyncio.run(_conversation(recipe, tokenizer, sample))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a network on two threads spends its time at barriers
    save_hf(_learnt(recipe, tokenizer, ids), paths.model("sft"))
    torch.set_num_threads(threads)
    tokenizer.save(paths.tokenizer)
    save_recipe(recipe, paths.recipe)
    LineageState(compute={"dtype_name": "float32", "device": "cpu", "threads": 1}).save(paths.lineage)
    return paths


async def _conversation(recipe: Recipe, tokenizer: Tokenizer, sample: Path) -> list[int]:
    """The ids of a chat in which a script does what the model shall do: the prompts are the harness's own."""
    recorder = TraceBuilder()
    script = ScriptedPolicy([f"> {call}" for call in CALLS], load_profile(recipe.harness.profile))
    schemas = session_schemas(recipe.harness)
    policy = RecordingPolicy(script, CompactFormat(tokenizer), schemas, recipe.engine.context, recorder)
    sandboxes = open_sandboxes(recipe.sandbox, sample.parent / "boxes")
    try:
        async with ChatSession(sample, policy, recipe.harness, recipe.sandbox, sandboxes) as session:
            await session.run(SAMPLE_TASK)
    finally:
        await sandboxes.close()
    (segment,) = recorder.segments()
    return [int(token) for token in segment.tokens]


def _learnt(recipe: Recipe, tokenizer: Tokenizer, ids: list[int]) -> Transformer:
    model = Transformer(config_from_recipe(recipe.model, tokenizer.vocab_size)).initialise(recipe.seed)
    tokens = torch.tensor([ids])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(_STEPS):
        logits = model(tokens[:, :-1]).logits_btv
        loss = torch.nn.functional.cross_entropy(logits[0], tokens[0, 1:])
        if loss.item() < _LEARNT:
            return model
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    raise AssertionError(f"not learnt by heart: loss {loss.item():.3f} after {_STEPS} steps")
