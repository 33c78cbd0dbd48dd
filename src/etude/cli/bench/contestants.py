"""Models as contestants, before they are opened: what they have answered already, and what not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from etude.bench import Contestant, Kept, Prompt
from etude.cli.bench.find_models import LocalModel, Model, ModelOptions
from etude.harness import Policy

if TYPE_CHECKING:
    from etude.training.compute import Compute

SLOTS = 4
"""Prompts that a local model answers at the same time."""


def contestant(model: Model, thinking: int, dtype: str, open_policy: Callable[[str], Policy]) -> Contestant:
    identity = model.identity(dtype) if isinstance(model, LocalModel) else model.identity()
    return Contestant(model.name, identity, model.plain, open_policy, thinking)


def unopened(conversation: str) -> Policy:
    raise AssertionError("this model is not to be asked")


def unanswered(
    model: Model, prompts: Sequence[Prompt], options: ModelOptions, compute: Compute | None, kept: Kept
) -> list[Prompt]:
    one = contestant(model, options.thinking, compute.dtype_name if compute else "", unopened)
    return [prompt for prompt in prompts if one.key(prompt) not in kept]
