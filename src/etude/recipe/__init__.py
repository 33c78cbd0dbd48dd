"""The typed recipe: one TOML file describes all stages of a run.

Each file holds the sections of one area (model, training, RL, ...), with a docstring below every field.
"""

from etude.recipe.load import RecipeError, load_recipe, save_recipe
from etude.recipe.recipe import Recipe

__all__ = ["Recipe", "RecipeError", "load_recipe", "save_recipe"]
