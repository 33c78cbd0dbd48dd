"""Opens the trained agent of a run folder, with the harness, tools and sandbox of its recipe."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from etude.cli.agent_setup import Front
from etude.engine.open import open_engine
from etude.harness import Policy, TokenPolicy, TokenSampling, format_of, session_schemas
from etude.lineage import Finished, dtype_of, finished_stage
from etude.trace.builder import TraceBuilder

_STAGES = ("rl", "continued", "sft", "base")


def run_front(run_folder: Path, stage: str | None = None) -> Front:
    """Return the trained agent of a run. `stage` is the stage whose model to use; None: the latest finished stage."""
    found = finished_stage(run_folder.resolve(), stage, _STAGES)
    trained = partial(_trained, found, dtype_of(found.paths))
    return Front(f"{found.paths.root.name}/{found.stage}", found.recipe.harness, found.recipe.sandbox, trained)


def _trained(found: Finished, dtype: str, stack: AsyncExitStack) -> Policy:
    recipe = found.recipe
    form = format_of(recipe.harness, found.paths.tokenizer)
    # Speculative drafts pay off only in small batches; and nobody waits for vLLM's start for one conversation.
    alone = recipe.engine.model_copy(update={"slots": 1, "kind": "builtin"})
    engine = open_engine(found.model, alone, dtype=dtype, threads=0, precision=recipe.precision)
    stack.push_async_callback(engine.shutdown)
    sampling = TokenSampling(recipe.engine.context, temperature=0.0)
    schemas = session_schemas(recipe.harness)
    return TokenPolicy(engine, form, schemas, sampling, TraceBuilder(), conversation="chat")
