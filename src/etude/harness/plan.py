"""From the recipe to what one run needs: the only place where the harness reads it."""

from __future__ import annotations

from collections.abc import Collection

from etude.harness.outcome import Budgets
from etude.harness.profile import Profile, load_profile
from etude.harness.schema import ToolSchema
from etude.harness.toolbox import ToolLimits
from etude.recipe.acting import HarnessRecipe, SandboxRecipe


def budgets_of(recipe: HarnessRecipe) -> Budgets:
    return Budgets(
        turns=recipe.max_turns,
        tool_calls=recipe.max_tool_calls,
        tokens=recipe.max_tokens,
        turn_tokens=recipe.max_turn_tokens,
        output_tokens=recipe.max_output_tokens,
        summary_trigger=recipe.summary_trigger,
        summary_tokens=recipe.max_summary_tokens,
        wall_seconds=recipe.wall_seconds,
    )


def profile_of(recipe: HarnessRecipe, without: Collection[str] = ()) -> Profile:
    """`without`: tools that are missing besides those that the recipe leaves out."""
    return load_profile(recipe.profile).without({*recipe.without, *without})


def tool_limits(recipe: SandboxRecipe, *, edits: int | None = None, strict: bool = False) -> ToolLimits:
    return ToolLimits(command_seconds=recipe.command_seconds, edits=edits, strict=strict)


def told_limits(recipe: SandboxRecipe) -> str:
    """What the agent is told of what its commands may use."""
    seconds, memory = recipe.command_seconds, recipe.memory_mb
    return f"a command has {seconds:g} seconds, {memory} MB of memory, {recipe.processes} processes and no network"


def session_schemas(recipe: HarnessRecipe) -> tuple[ToolSchema, ...]:
    """The tools that a policy must offer."""
    return profile_of(recipe).schemas()
