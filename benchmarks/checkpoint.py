"""A checkpoint of Qwen3-0.6B's real shape, with random weights: loaded, trained by SFT and RL, exported, and compared
with `transformers`, on a CPU in fp32.

The shape is that of recipes/shapes/qwen3-0.6b, 1.2 GB in bf16. Each part runs in a process of its own, one after the
other, so that its peak memory is its own; figures of memory leave out what Python and its modules take. SFT takes the
stage's own steps on packed rows of random tokens, the peer the same rows, its own loss, AdamW and clipping, as its
Trainer does. A step of RL is sampling by the engine, training, and publishing a version of the weights; tasks and
sandboxes are left out. What RL exported must give the same logits in `transformers`.

It needs about 17 GB of memory and 10 GB of disk in TMPDIR.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _report import finish
from torch import nn

from etude.corpus import Mixture, TraceRows
from etude.engine.builtin import BuiltinEngine
from etude.engine.protocol import GenerateRequest, Generation, Sampling
from etude.journal import RunPaths
from etude.model import Transformer, load_hf, read_config, save_hf
from etude.model.checkpoints.tensor_file import read_json_file
from etude.pretrain.context import Rows, StageContext
from etude.pretrain.sft import demonstrations, learnt_and_held_out, plan
from etude.recipe import Recipe
from etude.rl.batch import TrainingGroup, TrainingMember
from etude.rl.trainer import RlTrainer
from etude.tasks import Judgement, Verdict
from etude.trace import Segment, SegmentKind, StopCause, Trace
from etude.trace.file import write_traces
from etude.training import Compute
from etude.training.loop import back_propagate

SHAPE = Path(__file__).resolve().parent.parent / "recipes" / "shapes" / "qwen3-0.6b"
NEEDED = 17e9
THREADS = 2
LENGTH, STEPS = 256, 3
"""Tokens of an SFT step, a single row; and steps, of which the first warms up."""
GROUPS, MEMBERS, PROMPT, NEW = 2, 2, 128, 32
RATE = {"name": "adamw", "lr": 1e-5, "warmup_steps": 0, "final_lr_share": 1.0}


def main() -> int:
    available = next(int(line.split()[1]) * 1024 for line in _lines("/proc/meminfo") if line.startswith("MemAvailable"))
    if available < NEEDED:
        print(f"{available / 1e9:.1f} GB of memory are free, this needs {NEEDED / 1e9:.0f}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as place:
        run = Path(place)
        apart(make, run)
        stored = sum(file.stat().st_size for file in RunPaths(run).model("base").glob("*.safetensors"))
        loaded = apart(load, run)
        ours = apart(sft, run)
        peer = apart(peers_sft, run)
        learned = apart(rl, run)
        agreement = apart(compare, run)
    finish(
        "checkpoint",
        {
            "peer": "transformers Qwen3ForCausalLM, torch AdamW",
            "gib": stored / 2**30,
            "load_s": loaded["seconds"],
            "peak_ratio": loaded["peak"] / stored,
            "sft_tokens_s": ours["tokens_s"],
            "peer_sft_tokens_s": peer["tokens_s"],
            "sft_ratio": ours["tokens_s"] / peer["tokens_s"],
            "sft_peak_gib": ours["peak"] / 2**30,
            "peer_sft_peak_gib": peer["peak"] / 2**30,
            "loss_difference": abs(ours["loss"] - peer["loss"]),
            "rl_step_s": learned["seconds"],
            "rl_tokens": GROUPS * MEMBERS * (PROMPT + NEW),
            "rl_peak_gib": learned["peak"] / 2**30,
            "logits_difference": agreement["difference"],
        },
    )
    return 0


def apart(part: Callable[[Path], dict[str, float]], run: Path) -> dict[str, float]:
    """Run a part in a fresh process. Return its result, and as "peak" the most memory that it took for itself."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        begun = time.monotonic()
        found = process.submit(_measured, part, run).result()
    print(f"{part.__name__}: {time.monotonic() - begun:.0f} s, {found['peak'] / 2**30:.2f} GiB", file=sys.stderr)
    return found


def _measured(part: Callable[[Path], dict[str, float]], run: Path) -> dict[str, float]:
    torch.set_num_threads(THREADS)
    before = _memory("VmRSS")
    found = part(run)
    return {**found, "peak": _memory("VmHWM") - before}


def make(run: Path) -> dict[str, float]:
    model = Transformer(read_config(read_json_file(SHAPE / "config.json"))).initialise(0).to(torch.bfloat16)
    save_hf(model, RunPaths(run).model("base"))
    rng = np.random.default_rng(0)
    (run / "demonstrations").mkdir()
    shown = [_trace(f"demo-{n}", f"task-{n}", _some_tokens(rng, LENGTH + 1), LENGTH // 2) for n in range(4 * STEPS)]
    write_traces(run / "demonstrations" / "random.parquet", shown)
    return {}


def load(run: Path) -> dict[str, float]:
    begun = time.perf_counter()
    load_hf(RunPaths(run).model("base"))
    return {"seconds": time.perf_counter() - begun}


def sft(run: Path) -> dict[str, float]:
    stage = plan(StageContext(run, _recipe("sft"), Compute("cpu", "float32", THREADS, "fixed"), "sft"))

    def step(number: int) -> float:
        loss, _, _ = back_propagate(stage.optim, stage.compute_loss(number))
        stage.optim.step()
        return loss

    return _timed(step)


def peers_sft(run: Path) -> dict[str, float]:
    model = _by_transformers(RunPaths(run).model("base")).train()
    recipe = _recipe("sft")
    asked = recipe.sft.optimizer
    optimizer = torch.optim.AdamW(model.parameters(), lr=asked.lr, betas=asked.betas, weight_decay=asked.weight_decay)
    train, _ = learnt_and_held_out(demonstrations(run, recipe.sft))
    stream = TraceRows(train, other_token_loss=0.0).stream("demonstrations", length=LENGTH, seed=recipe.seed)
    rows = Mixture.of({stream: 1.0})

    def step(number: int) -> float:
        row = Rows.of(rows.batch(number, 1), "cpu")
        last = row.targets[:, -1:]
        labels = torch.cat((torch.full_like(last, -100), row.targets.masked_fill(row.weights == 0, -100)), dim=1)
        loss = model(torch.cat((row.tokens, last), dim=1), labels=labels, use_cache=False).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), asked.grad_clip)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return _timed(step)


def rl(run: Path) -> dict[str, float]:
    recipe, paths = _recipe("rl"), RunPaths(run)
    begun = time.perf_counter()
    groups = _sampled_groups(recipe, paths)
    sampled = time.perf_counter() - begun
    compute = asdict(Compute("cpu", "float32", THREADS, "fixed"))
    trainer = RlTrainer(str(run), recipe.model_dump(mode="json", by_alias=True), compute, str(paths.weights))
    begun = time.perf_counter()
    metrics = trainer.train(0, groups)
    trained = time.perf_counter() - begun
    assert metrics["mismatch_p99"] < 1e-3, "the trainer must find the engine's log-probs"
    assert metrics["share_changed"] > 0, "a step must change the weights"
    trainer.export()
    return {"seconds": sampled + trained}


def compare(run: Path) -> dict[str, float]:
    folder = RunPaths(run).model("rl")
    tokens = torch.from_numpy(_some_tokens(np.random.default_rng(1), 64)).long()[None]
    with torch.no_grad():
        ours = load_hf(folder, torch.float32)(tokens).logits_btv
        theirs = _by_transformers(folder).eval()(tokens, use_cache=False).logits
    return {"difference": float((ours - theirs).abs().max() / theirs.abs().max())}


def _by_transformers(folder: Path) -> Any:
    import transformers  # here, since it takes memory and seconds that are none of ours

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def _recipe(stage: str) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "checkpoint",
            "stages": [stage],
            "model": {"from": str(SHAPE)},
            "engine": {"context": PROMPT + NEW, "slots": GROUPS * MEMBERS, "cache_slots": 0},
            "sft": {"steps": STEPS, "batch": 1, "length": LENGTH, "measure_every": 0, "optimizer": RATE},
            "rl": {"steps": 2, "prompts_per_step": GROUPS, "group": MEMBERS, "optimizer": RATE}
            | {"checkpoint_seconds": 3600.0, "probe_every": 1},
        }
    )


def _timed(step: Callable[[int], float]) -> dict[str, float]:
    """Take the steps. Return the loss of the first, and the tokens per second of the others."""
    losses, seconds = [], []
    for number in range(STEPS):
        begun = time.perf_counter()
        losses.append(step(number))
        seconds.append(time.perf_counter() - begun)
    return {"loss": losses[0], "tokens_s": LENGTH / statistics.median(seconds[1:])}


def _sampled_groups(recipe: Recipe, paths: RunPaths) -> list[TrainingGroup]:
    """Return groups of rollouts that the engine samples, in each of which one passes and one fails."""
    engine = BuiltinEngine(load_hf(paths.model("base"), torch.float32), recipe.engine)
    rng = np.random.default_rng(2)
    prompts = [_some_tokens(rng, PROMPT) for _ in range(GROUPS)]
    for number in range(GROUPS * MEMBERS):
        engine.submit(GenerateRequest(str(number), prompts[number // MEMBERS], Sampling(NEW, (), seed=number)))
    done: dict[str, Generation] = {}
    while engine.busy:
        for answer in engine.step():
            assert isinstance(answer, Generation), answer
            done[answer.id] = answer
    groups = []
    for group, prompt in enumerate(prompts):
        members = []
        for member in range(MEMBERS):
            found = done[str(group * MEMBERS + member)]
            tokens = np.concatenate([prompt, found.tokens]).astype(np.int32)
            trace = _trace(f"{group}-{member}", "task", tokens, PROMPT, found)
            members.append(TrainingMember(trace, Verdict(Judgement.FAIL if member else Judgement.PASS, "")))
        groups.append(TrainingGroup(group, 0, tuple(members)))
    return groups


def _trace(name: str, task: str, tokens: np.ndarray, prompt: int, found: Generation | None = None) -> Trace:
    """Return a trace of one segment, whose tokens after the prompt were sampled."""
    sampled = np.arange(len(tokens)) >= prompt
    logprobs, versions = np.zeros(len(tokens), np.float32), np.full(len(tokens), -1, np.int32)
    if found is not None:
        logprobs[prompt:], versions[prompt:] = found.logprobs, found.versions
    segment = Segment(0, None, SegmentKind.START, tokens, sampled, logprobs, versions, None)
    return Trace(name, task, "train", name, 0, "random", 0, [segment], stop=StopCause.FINISHED)


def _some_tokens(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.integers(0, 151_643, count).astype(np.int32)


def _memory(field: str) -> float:
    return next(int(line.split()[1]) * 1024.0 for line in _lines("/proc/self/status") if line.startswith(field))


def _lines(file: str) -> list[str]:
    return Path(file).read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    sys.exit(main())
