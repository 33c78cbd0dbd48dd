"""Groups of rollouts that a real engine sampled from a tiny random model, with rewards given by hand."""

from __future__ import annotations

import copy
from dataclasses import asdict
from pathlib import Path

import numpy as np

from etude.engine.builtin import BuiltinEngine
from etude.engine.protocol import GenerateRequest, Generation, Sampling
from etude.journal import RunPaths
from etude.model import Transformer, config_from_recipe, save_hf
from etude.recipe import Recipe
from etude.rl.batch import TrainingGroup, TrainingMember
from etude.rl.trainer import RlTrainer
from etude.tasks import Judgement, Verdict
from etude.trace import Segment, SegmentKind, StopCause, Trace
from etude.training import Compute

VOCAB = 300
PROMPT, LENGTH = 6, 10


def tiny_recipe(**rl: object) -> Recipe:
    optimizer = {"name": "adamw", "lr": 3e-3, "warmup_steps": 0, "final_lr_share": 1.0}
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, "moe_intermediate_size": 16}
    heads = {"n_routed_experts": 4, "num_attention_heads": 2, "kv_lora_rank": 16, "qk_nope_head_dim": 8}
    sizes = {"qk_rope_head_dim": 8, "v_head_dim": 8, "max_position_embeddings": 64, "initializer_range": 0.2}
    return Recipe.model_validate(
        {
            "name": "tiny",
            "model": {**shape, **heads, **sizes},
            "tokenizer": {"vocab_size": VOCAB},
            "engine": {"context": 64, "slots": 8},
            "rl": {
                "optimizer": optimizer,
                "loss_constant": 10.0,
                "prompts_per_step": 2,
                "group": 2,
                "steps": 4,
                "checkpoint_seconds": 0,
                **rl,
            },
        }
    )


def tiny_model(recipe: Recipe) -> Transformer:
    return Transformer(config_from_recipe(recipe.model, VOCAB)).initialise(0)


def open_trainer(root: Path, recipe: Recipe, dtype: str = "float32", device: str = "cpu") -> RlTrainer:
    paths = RunPaths(root)
    if not paths.model("sft").exists():
        save_hf(tiny_model(recipe), paths.model("sft"))
    compute = asdict(Compute(device, dtype, 1, "a test"))
    return RlTrainer(str(root), recipe.model_dump(mode="json", by_alias=True), compute, str(paths.weights))


def sample(
    recipe: Recipe, model: Transformer, count: int, *, version: int = 0, seed: int = 0
) -> tuple[list[Generation], np.ndarray]:
    # A copy: the engine freezes what it serves.
    engine = BuiltinEngine(copy.deepcopy(model), recipe.engine, version=version)
    prompt = np.random.default_rng(seed).integers(0, VOCAB, PROMPT).astype(np.int32)
    for number in range(count):
        sampling = Sampling(LENGTH, (), seed=seed * 100 + number)
        engine.submit(GenerateRequest(str(number), prompt, sampling))
    done: dict[str, Generation] = {}
    while len(done) < count:
        for answer in engine.step():
            assert isinstance(answer, Generation), answer
            done[answer.id] = answer
    return [done[str(number)] for number in range(count)], prompt


def member(name: str, generation: Generation, prompt: np.ndarray, judgement: Judgement) -> TrainingMember:
    n, p = len(generation.tokens), len(prompt)
    segment = Segment(
        0,
        None,
        SegmentKind.START,
        np.concatenate([prompt, generation.tokens]).astype(np.int32),
        np.arange(p + n) >= p,
        np.concatenate([np.zeros(p), generation.logprobs]).astype(np.float32),
        np.concatenate([np.full(p, -1), generation.versions]).astype(np.int32),
        generation.experts,
    )
    trace = Trace(name, "task", "train", name[:4], 0, "policy", 0, [segment], stop=StopCause.FINISHED)
    return TrainingMember(trace, Verdict(judgement, ""))


def make_groups(recipe: Recipe, model: Transformer, step: int) -> list[TrainingGroup]:
    """Two groups: the first with one solved and one failed rollout and one that infrastructure lost, the second with
    nothing to tell its members apart."""
    first, prompt = sample(recipe, model, 2, version=step, seed=2 * step)
    second, other = sample(recipe, model, 2, version=step, seed=2 * step + 1)
    mixed = (member(f"g{2 * step}-0", first[0], prompt, Judgement.PASS), None)
    mixed += (member(f"g{2 * step}-1", first[1], prompt, Judgement.FAIL),)
    same = tuple(member(f"g{2 * step + 1}-{n}", g, other, Judgement.FAIL) for n, g in enumerate(second))
    return [TrainingGroup(2 * step, step, mixed), TrainingGroup(2 * step + 1, step, same)]
