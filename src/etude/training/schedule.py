"""The learning rate of a step: linear warm-up, then linear decay to a fraction of the peak.

It is a pure function of (recipe, step, total), so checkpoints need not store it.
"""

from __future__ import annotations

from etude.recipe.training import OptimizerRecipe


def learning_rate(recipe: OptimizerRecipe, step: int, total: int) -> float:
    """Return the learning rate of the next update, when `step` of `total` updates are finished."""
    warmup = min(recipe.warmup_steps, total)
    if step < warmup:
        return recipe.lr * (step + 1) / (warmup + 1)
    share = (step - warmup) / max(1, total - warmup)
    return recipe.lr * (1.0 - (1.0 - recipe.final_lr_share) * min(1.0, share))
