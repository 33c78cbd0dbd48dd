"""A small run folder with real parts: corpus, tokenizer, demonstrations, and a recipe that takes seconds per stage."""

import io
import json
import random
from pathlib import Path

import numpy as np
import zstandard

from etude.corpus import gather, write_corpus
from etude.recipe import Recipe
from etude.text import Tokenizer
from etude.trace.file import write_traces
from etude.trace.trace import Segment, SegmentKind, Trace

NAMES = ["total", "left", "right", "item", "count", "names", "value", "index", "width", "height"]


def small_recipe(code: Path, **stages: dict) -> Recipe:
    stage = {"batch": 4, "length": 64, "optimizer": {"name": "muon", "lr": 1e-2, "warmup_steps": 2}, "log_every": 2}
    sections = {
        "pretrain": {**stage, "steps": 12, "lookup_share": 0.25},
        "long": {**stage, "steps": 6, "batch": 2, "length": 256, "factor": 4},
        "mtp": {**stage, "steps": 8, "joint_steps": 2},
        "sft": {**stage, "steps": 8},
    }
    for name, changes in stages.items():
        sections[name] |= changes
    return Recipe.model_validate(
        {
            "name": "small",
            "seed": 5,
            "compute": {"dtype": "bfloat16", "threads": 1},
            "model": {
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "intermediate_size": 64,
                "moe_intermediate_size": 16,
                "n_routed_experts": 4,
                "num_attention_heads": 2,
                "kv_lora_rank": 16,
                "qk_nope_head_dim": 16,
                "qk_rope_head_dim": 8,
                "v_head_dim": 16,
                "embedding_scale": 5.0,
            },
            "corpus": {"sources": ["generated"], "folders": [str(code)], "held_out_share": 0.15},
            "tokenizer": {"vocab_size": 512},
            **sections,
        }
    )


def make_run(root: Path, **stages: dict) -> tuple[Path, Recipe]:
    rng = random.Random(7)
    code, run = root / "code", root / "run"
    code.mkdir(parents=True)
    for number in range(40):
        (code / f"{number}.py").write_text("".join(_function(rng) for _ in range(12)))
    documents = run / "documents"
    documents.mkdir(parents=True)
    lines = [{"text": _lookup(rng), "kind": "lookup", "generator": "test", "version": "1"} for _ in range(150)]
    lines += [{"text": _function(rng) + _function(rng), "kind": "module"} for _ in range(150)]
    packed = io.BytesIO("".join(json.dumps(line) + "\n" for line in lines).encode())
    (documents / "a.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(packed.read()))
    recipe = small_recipe(code, **stages)
    gathered = gather(recipe.corpus, root / "work", documents)
    tokenizer = Tokenizer.train(gathered.texts(), recipe.tokenizer.vocab_size)
    tokenizer.save(run / "tokenizer.json")
    write_corpus(run / "corpus", gathered, tokenizer, recipe.corpus)
    (run / "demonstrations").mkdir()
    write_traces(run / "demonstrations" / "oracle.parquet", [_trace(rng, tokenizer, n) for n in range(30)])
    return run, recipe


def _function(rng: random.Random) -> str:
    one, two, three = rng.sample(NAMES, 3)
    return f"def {one}({two}):\n    {three} = {two} + {rng.randrange(50)}\n    return {three} * {rng.randrange(50)}\n\n"


def _lookup(rng: random.Random) -> str:
    names = rng.sample(NAMES, 4)
    return "".join(f"{n} {name}\n" for n, name in enumerate(names)) + "".join(f"{n} {names[n]}\n" for n in (2, 0))


def _trace(rng: random.Random, tokenizer: Tokenizer, number: int) -> Trace:
    parts = [(_function(rng), False), ("read " + rng.choice(NAMES), True), (_function(rng), False), ("finish", True)]
    ids, sampled = [tokenizer.special.bos], [False]
    for text, acted in parts:
        more = tokenizer.encode(text)
        ids += more
        sampled += [acted] * len(more)
    count = len(ids)
    segment = Segment(
        0,
        None,
        SegmentKind.START,
        np.array(ids, dtype=np.int32),
        np.array(sampled),
        np.zeros(count, dtype=np.float32),
        np.full(count, -1, dtype=np.int32),
        None,
    )
    return Trace(f"demo-{number:03d}", f"task-{number}", "train", "g", 0, "oracle", number, [segment])
