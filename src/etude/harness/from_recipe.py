"""Turns the recipe into what one run needs: budgets, limits, profile, tool schemas and format."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from etude.harness.context.profile import Profile, compaction_request, load_profile
from etude.harness.outcome import Budgets, Prices
from etude.harness.schema import ToolSchema
from etude.harness.tools.context import ToolLimits
from etude.recipe.acting import HarnessRecipe, SandboxRecipe
from etude.text.compact import CompactFormat
from etude.text.format import Format
from etude.text.formats import FORMATS
from etude.text.pretrained import PretrainedTokenizer
from etude.text.tokenizer import Tokenizer


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


def told_limits(recipe: SandboxRecipe) -> str:
    """One line that tells the agent what its commands may use."""
    seconds, memory = recipe.command_seconds, recipe.memory_mb
    return f"a command has {seconds:g} seconds, {memory} MB of memory, {recipe.processes} processes and no network"


def profile_of(recipe: HarnessRecipe, without: Collection[str] = ()) -> Profile:
    """The recipe's profile. `without` names tools to leave out besides those that the recipe leaves out."""
    profile = load_profile(recipe.profile).without({*recipe.without, *without})
    return profile if recipe.compaction == "self" else replace(profile, summary_request=compaction_request())


def session_schemas(recipe: HarnessRecipe) -> tuple[ToolSchema, ...]:
    """Schemas of the tools that a policy must offer."""
    return profile_of(recipe).schemas()


def format_of(recipe: HarnessRecipe, tokenizer: Path) -> Format:
    """The format of prompts. `tokenizer` is the run's own, for recipes that name no other. Every token policy gets its
    format here, to declare its tools in. Raises TokenizerError if the two do not go together."""
    if recipe.format == "compact":
        return CompactFormat(Tokenizer.load(tokenizer))
    published = PretrainedTokenizer.load(Path(recipe.tokenizer).expanduser() if recipe.tokenizer else tokenizer)
    return FORMATS[recipe.format](published)
