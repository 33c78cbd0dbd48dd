"""The RL circle in one process on one device: an engine samples groups, the trainer takes a step and publishes a
version, and the engine takes it from the store. Weights are random, and so is which answers count as solved."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from line_rows import wait

from etude.engine.builtin import BuiltinEngine
from etude.engine.protocol import GenerateRequest, Generation, Sampling
from etude.journal import RunPaths
from etude.model import load_hf, save_hf
from etude.model.config import ModelConfig
from etude.model.transformer import Transformer
from etude.recipe import Recipe
from etude.rl.batch import TrainingGroup, TrainingMember
from etude.rl.trainer import RlTrainer
from etude.tasks import Judgement, Verdict
from etude.trace import Segment, SegmentKind, StopCause, Trace
from etude.training import Compute
from etude.weights import WeightStore

GROUPS, MEMBERS = 4, 8


def turned(config: ModelConfig, steps: int, device: str) -> dict[str, Any]:
    small = config.hidden_size < 256
    prompt, length = (16, 16) if small else (256, 256)
    compute = Compute(device, "bfloat16", torch.get_num_threads(), "a benchmark")
    with TemporaryDirectory(prefix="etude-gpu-") as place:
        recipe, paths = _recipe(steps, prompt + length, device), RunPaths(Path(place))
        save_hf(Transformer(config).to(torch.bfloat16), paths.model("sft"))
        plain = recipe.model_dump(mode="json", by_alias=True)
        trainer = RlTrainer(place, plain, asdict(compute), str(paths.weights))
        served = load_hf(paths.model("sft"), torch.bfloat16, device=device)
        engine = BuiltinEngine(served, recipe.engine)
        store, have = WeightStore(str(paths.weights)), None
        rows: list[dict[str, float]] = []
        for step in range(steps):
            times = [time.perf_counter()]
            groups = _sampled(engine, step, config.vocab_size, prompt, length)
            times.append(time.perf_counter())
            metrics = trainer.train(step, groups)
            times.append(time.perf_counter())
            have = (step + 1, store.read(step + 1, have=have))
            times.append(time.perf_counter())
            engine.swap(*have, delta=True)
            wait(device)
            times.append(time.perf_counter())
            parts = dict(zip(("sample", "train_and_publish", "read", "swap"), np.diff(times).tolist(), strict=True))
            told = {name: metrics[name] for name in ("train_seconds", "mismatch_mean", "mismatch_k3", "delta_share")}
            rows.append(parts | told)
        last = {name: float(f"{value:.4g}") for name, value in rows[-1].items()}
        tokens = GROUPS * MEMBERS * length
        finite = bool(np.isfinite(list(last.values())).all())
        return {**last, "sampled_tokens_s": round(tokens / last["sample"], 1), "finite": finite}


def _recipe(steps: int, context: int, device: str) -> Recipe:
    rl = {"steps": steps, "prompts_per_step": GROUPS, "group": MEMBERS, "checkpoint_seconds": 3600.0}
    rl |= {"loss_constant": 1000.0, "optimizer": {"name": "adamw", "lr": 1e-5, "warmup_steps": 0}}
    engine = {"context": context + 1, "slots": GROUPS * MEMBERS, "cache_slots": 0, "speculate": "never"}
    return Recipe.model_validate({"name": "circle", "compute": {"device": device}, "engine": engine, "rl": rl})


def _sampled(engine: BuiltinEngine, step: int, vocabulary: int, prompt: int, length: int) -> list[TrainingGroup]:
    numbers = np.random.default_rng(step)
    prompts = [numbers.integers(0, vocabulary, prompt).astype(np.int32) for _ in range(GROUPS)]
    for group, ids in enumerate(prompts):
        for member in range(MEMBERS):
            sampling = Sampling(length, (), seed=step * 1000 + group * MEMBERS + member)
            engine.submit(GenerateRequest(f"{group}-{member}", ids, sampling))
    done: dict[str, Generation] = {}
    while len(done) < GROUPS * MEMBERS:
        for answer in engine.step():
            assert isinstance(answer, Generation), answer
            done[answer.id] = answer
    return [
        TrainingGroup(
            step * GROUPS + group,
            step,
            tuple(_member(f"s{step}g{group}m{n}", done[f"{group}-{n}"], ids, n % 2 == 0) for n in range(MEMBERS)),
        )
        for group, ids in enumerate(prompts)
    ]


def _member(name: str, answer: Generation, prompt: np.ndarray, solved: bool) -> TrainingMember:
    given, count = len(prompt), len(answer.tokens)
    segment = Segment(
        0,
        None,
        SegmentKind.START,
        np.concatenate([prompt, answer.tokens]).astype(np.int32),
        np.arange(given + count) >= given,
        np.concatenate([np.zeros(given), answer.logprobs]).astype(np.float32),
        np.concatenate([np.full(given, -1), answer.versions]).astype(np.int32),
        answer.experts,
    )
    trace = Trace(name, "task", "train", name, 0, "policy", 0, [segment], stop=StopCause.FINISHED)
    return TrainingMember(trace, Verdict(Judgement.PASS if solved else Judgement.FAIL, ""))
