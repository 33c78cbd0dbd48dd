"""What the plan says of a stage's memory, beside what the stage's process took: SFT and RL steps of two families.

Each case is a process of its own. It takes two steps with the code of its stage, on random tokens that fill the largest
pass (SFT also with checkpointed layers, in larger passes), and reports by how much its resident memory grew at most
(the kernel's high-water mark) after all imports. RL publishes its versions too, and samples with an engine of which
every slot is filled. `worst` is the largest deviation of the plan from that growth, as a share of it; the plan is to be
within 15 %.

    make bench NAME=memory
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _report import finish

from etude.engine.builtin import BuiltinEngine
from etude.engine.builtin.memory import engine_memory
from etude.engine.protocol import GenerateRequest, Sampling
from etude.journal import RunPaths
from etude.model import ModelConfig, Transformer, load_hf, read_config, save_hf
from etude.pretrain.context import Rows, StageContext
from etude.pretrain.memory import stage_memory
from etude.pretrain.sft import demonstration_losses
from etude.recipe import Recipe
from etude.recipe.lora import LoraRecipe
from etude.rl.batch import TrainingGroup, TrainingMember
from etude.rl.memory import trainer_memory
from etude.rl.trainer import RlTrainer
from etude.tasks import Judgement, Verdict
from etude.trace import Segment, SegmentKind, StopCause, Trace
from etude.training import Compute, build_optimizer
from etude.training.loop import back_propagate
from etude.weights import WeightStore
from etude.weights.torch_bridge import from_state_dict

LENGTH = 256
GENERAL: dict[str, Any] = {"vocab_size": 8192, "hidden_size": 512, "num_hidden_layers": 6, "rms_norm_eps": 1e-6}
GENERAL |= {"num_attention_heads": 8, "max_position_embeddings": 1024, "rope_theta": 10000.0, "hidden_act": "silu"}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {
        **GENERAL,
        "model_type": "qwen3",
        "intermediate_size": 1536,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "tie_word_embeddings": True,
    },
    "deepseek_v3": {
        **GENERAL,
        "model_type": "deepseek_v3",
        "intermediate_size": 1536,
        "moe_intermediate_size": 256,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "q_lora_rank": None,
        "kv_lora_rank": 128,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "v_head_dim": 64,
        "num_nextn_predict_layers": 1,
        "tie_word_embeddings": False,
    },
}
CASES = ("sft", "checkpointed", "rl", "engine")


def main() -> None:
    if sys.argv[1:2] == ["--case"]:
        print(json.dumps(measured(*sys.argv[2:4])))
        return
    found: dict[str, Any] = {}
    for family in FAMILIES:
        for case in CASES:
            command = [sys.executable, __file__, "--case", family, case]
            took = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            found.setdefault(family, {})[case] = took["planned"] / took["grew"]
            print(f"{family:12} {case:7} planned {took['planned'] / 1e6:,.0f} MB, grew {took['grew'] / 1e6:,.0f} MB")
    finish("memory", {**found, "worst": max(abs(ratio - 1) for cases in found.values() for ratio in cases.values())})


def measured(family: str, case: str) -> dict[str, float]:
    """Run one case in this process; return the bytes that were planned, and by how many the process grew."""
    torch.set_num_threads(2)
    torch.ones(64, 64) @ torch.ones(64, 64)  # starts torch's threads
    config = read_config(FAMILIES[family])
    with tempfile.TemporaryDirectory() as place:
        return {"sft": _sft, "checkpointed": _checkpointed, "rl": _rl, "engine": _engine}[case](config, Path(place))


def _recipe() -> Recipe:
    return Recipe.model_validate(
        {
            "name": "memory",
            "sft": {"batch": 4, "length": LENGTH, "microbatch_tokens": 2 * LENGTH},
            "rl": {"steps": 2, "prompts_per_step": 1, "group": 2, "microbatch_tokens": 2 * LENGTH, "probe_every": 1},
            "engine": {"context": LENGTH, "slots": 24, "cache_slots": 0, "speculate": "never"},
            "compute": {"dtype": "float32"},
        }
    )


def _checkpointed(config: ModelConfig, place: Path) -> dict[str, float]:
    plain = _recipe().model_dump(by_alias=True)
    plain["sft"] |= {"batch": 8, "microbatch_tokens": 8 * LENGTH}
    plain["compute"]["checkpoint_activations"] = "blocks"
    return _sft(config, place, Recipe.model_validate(plain))


def _sft(config: ModelConfig, place: Path, recipe: Recipe | None = None) -> dict[str, float]:
    recipe, random = recipe or _recipe(), np.random.default_rng(0)
    context = StageContext(place, recipe, Compute("cpu", "float32", 2, "a benchmark"), "sft")
    before = _held()
    model = Transformer(config).initialise(0)
    optim = build_optimizer(model, recipe.sft.optimizer, 2, masters=context.masters(model))
    for _ in range(2):
        shape = (recipe.sft.batch, LENGTH)
        tokens = torch.from_numpy(random.integers(0, config.vocab_size, shape))
        positions = torch.arange(LENGTH).expand(shape)
        rows = Rows(tokens, tokens.roll(-1, 1), torch.ones(shape), positions, torch.zeros_like(tokens))
        optim.zero_grad()
        back_propagate(optim, demonstration_losses(model, rows, recipe.sft))
        optim.step()
    return {"planned": stage_memory(recipe, "sft", config, torch.float32).peak, "grew": _peak() - before}


def _rl(config: ModelConfig, place: Path) -> dict[str, float]:
    recipe, paths = _recipe(), RunPaths(place)
    save_hf(Transformer(config).initialise(0), paths.model("sft"))
    before = _held()
    arguments = recipe.model_dump(mode="json", by_alias=True), asdict(Compute("cpu", "float32", 2, "a benchmark"))
    trainer = RlTrainer(str(place), *arguments, str(paths.weights))
    for step in range(2):
        members = tuple(_member(config, step, judgement) for judgement in (Judgement.PASS, Judgement.FAIL))
        trainer.train(step, [TrainingGroup(step, step, members)])
    assert trainer._held._descriptor is not None
    mapped = os.fstat(trainer._held._descriptor).st_size  # a file in memory, which no process's mark counts
    return {"planned": trainer_memory(recipe, config, torch.float32).peak, "grew": _peak() - before + mapped}


def _member(config: ModelConfig, version: int, judgement: Judgement) -> TrainingMember:
    random = np.random.default_rng(version)
    segment = Segment(
        0,
        None,
        SegmentKind.START,
        random.integers(0, config.vocab_size, LENGTH).astype(np.int32),
        np.arange(LENGTH) >= 16,
        np.full(LENGTH, -9.0, np.float32),
        np.where(np.arange(LENGTH) < 16, -1, version).astype(np.int32),
        None,
    )
    trace = Trace(f"{version}-{judgement}", "task", "train", str(version), 0, "model", 0, [segment])
    trace.stop = StopCause.FINISHED
    return TrainingMember(trace, Verdict(judgement, ""))


def _engine(config: ModelConfig, place: Path) -> dict[str, float]:
    recipe, random, store = _recipe().engine, np.random.default_rng(0), WeightStore(str(place / "weights"))
    save_hf(Transformer(config).initialise(0), place / "model")
    tensors = from_state_dict(load_hf(place / "model", torch.float32).state_dict())
    for version in (1, 2):
        store.publish(version, tensors)
    del tensors
    before = _held()
    engine = BuiltinEngine(load_hf(place / "model", torch.float32), recipe)
    engine.swap(1, (held := store.read(1)), delta=False)
    following = store.read(2)  # as a service reads it, while the engine samples with the one that it holds
    for number in range(recipe.slots):
        prompt = random.integers(0, config.vocab_size, LENGTH - 4).astype(np.int32)
        engine.submit(GenerateRequest(str(number), prompt, Sampling(2, ())))
    while engine.busy:
        engine.step()
    assert held.keys() == following.keys()
    planned = engine_memory(recipe, config, torch.float32, lora=LoraRecipe()).peak
    return {"planned": planned, "grew": _peak() - before}


def _held() -> int:
    """Give back what is free in the heap, forget the high-water mark, and return the resident memory."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


if __name__ == "__main__":
    main()
