"""Builds the parts of an agent run from the recipe: budgets, limits, profile, tool schemas and format."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from etude.harness.context.profile import Profile, compaction_request, load_profile
from etude.harness.outcome import Budgets, Prices
from etude.harness.schema import ToolSchema
from etude.harness.tools.context import ToolLimits
from etude.recipe.acting import HarnessRecipe, SandboxRecipe
from etude.text.format import Format
from etude.text.opening import open_format


def budgets_of(recipe: HarnessRecipe) -> Budgets:
    return Budgets(
        turns=recipe.max_turns,
        tool_calls=recipe.max_tool_calls,
        tokens=recipe.max_tokens,
        turn_tokens=recipe.max_turn_tokens,
        output_tokens=recipe.max_output_tokens,
        summary_trigger=recipe.summary_trigger,
        summary_tokens=recipe.max_summary_tokens,
        tool_seconds=recipe.max_tool_seconds,
        money=recipe.max_money,
        prices=Prices(recipe.prices.input, recipe.prices.cached, recipe.prices.output),
        wall_seconds=recipe.wall_seconds,
    )


def tool_limits(recipe: SandboxRecipe, *, edits: int | None = None, strict: bool = False) -> ToolLimits:
    return ToolLimits(command_seconds=recipe.command_seconds, edits=edits, strict=strict)


def limits_text(recipe: SandboxRecipe) -> str:
    seconds, memory = recipe.command_seconds, recipe.memory_mb
    return f"a command has {seconds:g} seconds, {memory} MB of memory, {recipe.processes} processes and no network"


def profile_of(recipe: HarnessRecipe, without: Collection[str] = ()) -> Profile:
    """Return the recipe's profile, without the tools that the recipe excludes and those in `without`."""
    profile = load_profile(recipe.profile).without({*recipe.without, *without})
    return profile if recipe.compaction == "self" else replace(profile, summary_request=compaction_request())


def session_schemas(recipe: HarnessRecipe) -> tuple[ToolSchema, ...]:
    return profile_of(recipe).schemas()


def format_of(recipe: HarnessRecipe, tokenizer: Path) -> Format:
    """Return the format in which a token policy writes prompts. `tokenizer` is the run's own tokenizer, used if the
    recipe names no other. Raises TokenizerError if format and tokenizer do not fit together, or if no format is
    found."""
    path = Path(recipe.tokenizer).expanduser() if recipe.tokenizer and recipe.format != "compact" else tokenizer
    return open_format(path, recipe.format)[1]
