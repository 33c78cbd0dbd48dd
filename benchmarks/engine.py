"""Tokens per second of the built-in engine and of `transformers.generate`, on the same random DeepSeek-V3 checkpoint.

Prompts come in groups with a common start, as in RL. Sampling is greedy without a stop token, so both sides produce the
same number of tokens; the share of equal ones is printed. The peer runs in its best case: one batch without padding,
with its own cache. A second round stands for a rollout's next turn: every conversation continues, where the engine uses
its prefix cache and the peer reads the whole prompt again.

The figures with drafts use a random draft head, whose drafts are almost never accepted, so they show the cost of
drafting. What a trained head gains is in a run's summary.json (engine.accepted_per_step).

Last come many short turns in bf16 (_turns.py), without a peer. That network's distributions are so flat that drafts are
accepted about as often as a trained head's.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from _report import finish
from _turns import short_turns
from transformers import DeepseekV3ForCausalLM

from etude.engine.builtin import BuiltinEngine
from etude.engine.protocol import GenerateRequest, Generation, Sampling
from etude.model import Transformer, config_from_recipe, load_hf, save_hf
from etude.recipe.acting import EngineRecipe
from etude.recipe.model import ModelRecipe

VOCAB = 1024
GROUPS, MEMBERS, PROMPT, NEW, TURN = 4, 8, 96, 48, 32
RUNS = 2


@dataclass(slots=True)
class Turn:
    seconds: float
    tokens: int
    continuations: np.ndarray


def main() -> None:
    torch.set_num_threads(1)  # as in recipes/tiny.toml; on ops this small two threads only wait for each other
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    config = config_from_recipe(ModelRecipe(initializer_range=0.2), VOCAB)
    with tempfile.TemporaryDirectory() as place:
        save_hf(Transformer(config).initialise(0), Path(place))
        ours = load_hf(Path(place))
        peer = DeepseekV3ForCausalLM.from_pretrained(place, dtype=torch.float32).eval()
    generator = np.random.default_rng(0)
    starts = generator.integers(10, VOCAB, (GROUPS, PROMPT))
    prompts = np.repeat(starts, MEMBERS, axis=0).astype(np.int32)
    prompts[:, -4:] = generator.integers(10, VOCAB, (len(prompts), 4))
    said = generator.integers(10, VOCAB, (len(prompts), TURN)).astype(np.int32)

    peers: list[float] = []
    plain: list[float] = []
    drafted: list[float] = []
    for run in range(RUNS + 1):
        results = [conversation_of_peer(peer, prompts, said)]
        for speculate, kept in (("never", plain), ("always", drafted)):
            engine = BuiltinEngine(ours, EngineRecipe(slots=len(prompts), speculate=speculate))
            results.append(conversation_of_engine(engine, prompts, said))
            stats = engine.stats()
            if run:
                kept.append(results[-1].seconds)
        if run:
            peers.append(results[0].seconds)
    same = [float((results[0].continuations == other.continuations).mean()) for other in results[1:]]
    tokens = results[0].tokens
    best = {"peer": min(peers), "plain": min(plain), "drafted": min(drafted)}
    finish(
        "engine",
        {
            "peer": "transformers generate",
            "sequences": len(prompts),
            "tokens": tokens,
            "peer_tokens_per_second": tokens / best["peer"],
            "tokens_per_second": tokens / best["plain"],
            "ratio": best["peer"] / best["plain"],
            "with_drafts_tokens_per_second": tokens / best["drafted"],
            "accepted_per_draft": stats.accepted / max(1, stats.drafted),
            "same_tokens": same[0],
            "same_tokens_with_drafts": same[1],
            **turns(),
        },
    )


def turns() -> dict[str, float]:
    """Costs of short turns without and with drafts: the best of `RUNS`, since other load can only add time."""
    model = Transformer(config_from_recipe(ModelRecipe(), VOCAB)).initialise(0).to(torch.bfloat16)
    plain, drafted = (
        max((short_turns(model, speculate) for _ in range(RUNS)), key=lambda run: run["turns_per_cpu_second"])
        for speculate in ("never", "always")
    )
    shown = {f"plain_{name}": plain[name] for name in ("turns_per_cpu_second", "cpu_ms_per_step")}
    return shown | {f"drafted_{name}": value for name, value in drafted.items()}


def conversation_of_peer(model: Any, prompts: np.ndarray, said: np.ndarray) -> Turn:
    begun = time.perf_counter()
    asked, parts = torch.from_numpy(prompts).long(), []
    for turn in range(2):
        with torch.inference_mode():
            full = model.generate(
                asked,
                attention_mask=torch.ones_like(asked),
                max_new_tokens=NEW,
                min_new_tokens=NEW,
                do_sample=False,
                use_cache=True,
                pad_token_id=0,
                eos_token_id=None,
            )
        parts.append(full[:, asked.shape[1] :].numpy())
        if turn == 0:
            asked = torch.cat((full, torch.from_numpy(said).long()), dim=1)
    out = np.concatenate(parts, axis=1)
    return Turn(time.perf_counter() - begun, out.size, out)


def conversation_of_engine(engine: BuiltinEngine, prompts: np.ndarray, said: np.ndarray) -> Turn:
    begun = time.perf_counter()
    asked, parts = prompts, []
    for turn in range(2):
        for number, prompt in enumerate(asked):
            sampling = Sampling(max_tokens=NEW, stop=(), temperature=0.0, seed=number)
            engine.submit(GenerateRequest(f"{turn}-{number}", prompt, sampling, conversation=f"c{number}"))
        answers: dict[str, Generation] = {}
        while engine.busy:
            for answer in engine.step():
                assert isinstance(answer, Generation), answer
                answers[answer.id] = answer
        parts.append(np.stack([answers[f"{turn}-{number}"].tokens for number in range(len(asked))]))
        asked = np.concatenate((asked, parts[-1], said), axis=1).astype(np.int32)
    out = np.concatenate(parts, axis=1)
    return Turn(time.perf_counter() - begun, out.size, out)


if __name__ == "__main__":
    main()
