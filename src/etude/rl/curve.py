"""Determines after which RL steps the dev split is evaluated."""

from __future__ import annotations

from etude.recipe.rl import RlRecipe


def evaluated_steps(rl: RlRecipe) -> list[int]:
    """Return every `evaluate_every`-th step from 0, and always the last one; empty if `evaluate_every` is 0."""
    return sorted({*range(0, rl.steps, rl.evaluate_every), rl.steps}) if rl.evaluate_every else []
