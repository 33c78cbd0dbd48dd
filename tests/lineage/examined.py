"""The folder of a run whose stages have just ended: random weights, and demonstrations of random tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from etude.journal import RunPaths
from etude.lineage import LineageState
from etude.model import Transformer, config_from_recipe, save_hf
from etude.recipe import Recipe, save_recipe
from etude.trace import Segment, SegmentKind, Trace
from etude.trace.file import write_traces

VOCAB = 64
MODEL: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_attention_heads": 2,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "max_position_embeddings": 96,
    "initializer_range": 0.15,
}


def examined_run(
    root: Path, *, dtype: str = "float32", experts: str = "bf16", precision: dict[str, Any] | None = None, **model: Any
) -> RunPaths:
    """`precision` is what else the recipe says there."""
    paths = RunPaths(root)
    recipe = Recipe.model_validate(
        {
            "name": "examined",
            "model": MODEL | model,
            "engine": {"context": 64, "slots": 4},
            "precision": {"experts": experts, "emulate": experts != "bf16"} | (precision or {}),
        }
    )
    root.mkdir(parents=True)
    save_recipe(recipe, paths.recipe)
    LineageState(compute={"dtype_name": dtype}).save(paths.lineage)
    network = Transformer(config_from_recipe(recipe.model, VOCAB))
    for seed, stage in enumerate(("sft", "rl")):
        save_hf(network.initialise(seed), paths.model(stage))
    paths.demonstrations.mkdir()
    write_traces(paths.demonstrations / "oracle.parquet", [_trace(number) for number in range(60)])
    return paths


def _trace(number: int) -> Trace:
    tokens = np.random.default_rng(number).integers(0, VOCAB, 20 + number).astype(np.int32)
    none, unsampled = np.zeros(len(tokens), np.float32), np.full(len(tokens), -1, np.int32)
    segment = Segment(0, None, SegmentKind.START, tokens, tokens % 2 == 0, none, unsampled, None)
    return Trace(f"demo-{number:03d}", f"task-{number}", "train", "g", 0, "oracle", number, [segment])
