"""Of which steps of RL the dev split is evaluated."""

from __future__ import annotations

from etude.recipe.rl import RlRecipe


def evaluated_steps(rl: RlRecipe) -> list[int]:
    """A curve of them begins and ends where RL does."""
    return sorted({*range(0, rl.steps, rl.evaluate_every), rl.steps}) if rl.evaluate_every else []
