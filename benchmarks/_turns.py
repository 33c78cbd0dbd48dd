"""Measures an engine on many short turns, the load that RL of a small agent produces.

Conversations start in groups that share their prompt, and each has several turns; a tool's output is appended between
two turns. Twice as many are in flight as the engine has slots, so the batch is always full and about a fifth of it
changes at every step. The token counts are those of a real run of the tiny recipe. Times are CPU time of one thread,
since the wall clock of a busy machine says little.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from etude.engine.builtin import BuiltinEngine
from etude.engine.protocol import GenerateRequest, Generation, Sampling
from etude.model import Transformer
from etude.recipe.acting import EngineRecipe

IN_FLIGHT, GROUP, TURNS, FIRST = 192, 8, 8, 32
SAID = (4, 5, 12, 20, 38, 70)
"""Lengths in tokens of a tool's output, drawn uniformly."""
SAMPLED = (6, 7, 8, 9, 14)
WARM_UP, COUNTED = 400, 1200


@dataclass(slots=True)
class _Clock:
    """CPU seconds spent inside one function."""

    seconds: float = 0.0

    def around(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            begun = time.thread_time()
            try:
                return inner(*args, **options)
            finally:
                self.seconds += time.thread_time() - begun

        return timed


@dataclass(slots=True)
class _Driver:
    """Runs all conversations against one engine: every answer is followed by the conversation's next request."""

    engine: BuiltinEngine
    vocab: int
    draw: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    left: dict[str, int] = field(default_factory=dict)
    prompts: dict[str, np.ndarray] = field(default_factory=dict)
    groups: int = 0
    turns: int = 0

    def begin_groups(self) -> None:
        while len(self.left) + GROUP <= IN_FLIGHT:
            prompt = self._tokens(FIRST)
            for member in range(GROUP):
                name = f"{self.groups}-{member}"
                self.left[name], self.prompts[name] = TURNS, prompt
                self._ask(name)
            self.groups += 1

    def step(self) -> None:
        for answer in self.engine.step():
            assert isinstance(answer, Generation), answer
            name = answer.id.partition("/")[0]
            self.turns += 1
            self.left[name] -= 1
            if not self.left[name]:
                del self.left[name], self.prompts[name]
                self.engine.close(name)
                continue
            said = self._tokens(int(self.draw.choice(SAID)))
            self.prompts[name] = np.concatenate((self.prompts[name], answer.tokens, said))
            self._ask(name)
        self.begin_groups()

    def _ask(self, name: str) -> None:
        sampling = Sampling(int(self.draw.choice(SAMPLED)), (), seed=int(self.draw.integers(1 << 62)))
        self.engine.submit(GenerateRequest(f"{name}/{self.left[name]}", self.prompts[name], sampling, name))

    def _tokens(self, count: int) -> np.ndarray:
        return self.draw.integers(10, self.vocab, count).astype(np.int32)


def short_turns(model: Transformer, speculate: Literal["never", "always"]) -> dict[str, float]:
    """Costs per turn, decode step and token, after a warm-up."""
    engine = BuiltinEngine(model, EngineRecipe(speculate=speculate))
    trunk, draft = _Clock(), _Clock()
    extend, drafts = model.extend, model.draft
    model.extend, model.draft = trunk.around(extend), draft.around(drafts)  # type: ignore[method-assign]
    try:
        driver = _Driver(engine, model.config.vocab_size)
        driver.begin_groups()
        while driver.turns < WARM_UP:
            driver.step()
        before, turns = engine.stats(), driver.turns
        trunk.seconds = draft.seconds = 0.0
        begun = time.thread_time()
        while driver.turns < turns + COUNTED:
            driver.step()
        seconds = time.thread_time() - begun
    finally:
        model.extend, model.draft = extend, drafts  # type: ignore[method-assign]
    after, turns = engine.stats(), driver.turns - turns
    steps, tokens = after.decode_steps - before.decode_steps, after.sampled_tokens - before.sampled_tokens
    return {
        "turns_per_cpu_second": turns / seconds,
        "sampled_tokens_per_cpu_second": tokens / seconds,
        "cpu_ms_per_step": 1000 * seconds / steps,
        "tokens_per_step": tokens / steps,
        "prefilled_per_turn": (after.prefilled_tokens - before.prefilled_tokens) / turns,
        "accepted_per_draft": (after.accepted - before.accepted) / max(1, after.drafted - before.drafted),
        "trunk_share": trunk.seconds / seconds,
        "draft_share": draft.seconds / seconds,
    }
