"""The typed recipe: one TOML file describes a whole lineage.

One file per group of rooms; every field is documented where it is defined.
"""

from etude.recipe.load import RecipeError, load_recipe, save_recipe
from etude.recipe.recipe import Recipe

__all__ = ["Recipe", "RecipeError", "load_recipe", "save_recipe"]
