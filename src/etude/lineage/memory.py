"""The memory that each stage's processes will take, and what to change where that is more than there is.

Nothing is built: sizes follow from the recipe and the network's shape. They leave out the interpreter with its
libraries, a third of a GB per process, and the boxes, which have a limit of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from etude.engine.builtin.memory import changes as engine_changes
from etude.engine.builtin.memory import engine_memory
from etude.model import ModelConfig
from etude.pretrain.memory import changes as stage_changes
from etude.pretrain.memory import stage_memory
from etude.recipe import Recipe
from etude.rl.memory import changes as trainer_changes
from etude.rl.memory import trainer_memory
from etude.training import TrainerMemory
from etude.training.memory import PROCESS, Change, advice, in_gb

WITH_ENGINE = ("rl", "continued")
"""Stages in which an engine samples while the trainer trains."""


@dataclass(frozen=True, slots=True)
class Need:
    """What the processes of a stage take that run at the same time."""

    stage: str
    peaks: tuple[int, ...]
    """Bytes of each process."""
    parts: str
    """What they hold, in words."""
    advice: str
    """What to change; empty if everything fits."""

    @property
    def peak(self) -> int:
        return sum(self.peaks) + PROCESS * len(self.peaks)

    def __str__(self) -> str:
        return f"{in_gb(self.peak)}: {self.parts}"


def memory_of(recipe: Recipe, config: ModelConfig, dtype: torch.dtype, free: float) -> list[Need]:
    """Return what each training stage takes, and the evaluation, in order."""
    needs, device = [], recipe.compute.device
    for stage in recipe.training:
        if stage == "rl":
            held, options = trainer_memory(recipe, config, dtype), trainer_changes(recipe, config, dtype)
        else:
            held, options = stage_memory(recipe, stage, config, dtype), stage_changes(recipe, stage, config, dtype)
        if stage in WITH_ENGINE:
            needs.append(_with_engine(recipe, stage, config, dtype, held, list(options), free))
        else:
            needs.append(_need(stage, (held.peak,), str(held), options, free))
    serving = engine_memory(recipe.engine, config, dtype, device, swaps=False, lora=recipe.lora)
    options = engine_changes(recipe.engine, config, dtype, device, swaps=False, lora=recipe.lora)
    return [*needs, _need("evaluate", (serving.peak,), f"engine with {serving}", options, free)]


def _with_engine(
    recipe: Recipe,
    stage: str,
    config: ModelConfig,
    dtype: torch.dtype,
    trainer: TrainerMemory,
    of_trainer: list[Change],
    free: float,
) -> Need:
    engine = engine_memory(recipe.engine, config, dtype, recipe.compute.device, lora=recipe.lora)
    device = recipe.compute.device
    of_engine = list(engine_changes(recipe.engine, config, dtype, device, swaps=True, lora=recipe.lora))
    options = [Change(c.fields, c.peak + engine.peak) for c in of_trainer]
    options += [Change(c.fields, c.peak + trainer.peak) for c in of_engine]
    if of_trainer and of_engine:  # both at their smallest
        options += [Change(f"{of_trainer[-1].fields} {c.fields}", of_trainer[-1].peak + c.peak) for c in of_engine]
    return _need(stage, (trainer.peak, engine.peak), f"trainer with {trainer}; engine with {engine}", options, free)


def _need(stage: str, peaks: tuple[int, ...], parts: str, options: Iterable[Change], free: float) -> Need:
    room = free - PROCESS * len(peaks)
    return Need(stage, peaks, parts, advice(options, room) if sum(peaks) > room else "")
