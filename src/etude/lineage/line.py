"""Runs the stages of a recipe in order. Each stage is completed once, and an interrupted one resumes.

A stage is an async function of the run's context. After a kill it can be called again, and continues where it was. Its
return value is its result, kept in lineage.json with digests of the recipe and of the code that made it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from etude.journal import code_digest
from etude.lineage.context import RunContext
from etude.lineage.state import (
    MODELS,
    LineageError,
    LineageState,
    StageRecord,
    is_digest_of,
    output_digest,
    recipe_digest,
    recipe_of,
)
from etude.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Stage:
    name: str
    title: str
    """The stage's name as shown on the screen."""
    sections: tuple[str, ...]
    """Sections or fields of the recipe that the stage itself uses. Its result also depends on the seed and on the
    stages it needs."""
    outputs: tuple[str, ...]
    """Files and folders in the run folder that later stages read. Their common digest is recorded."""
    run: Callable[[RunContext], Awaitable[dict[str, Any]]]
    require: Callable[[RunContext], None] | None = None
    """Check of the earlier stages' outputs, which raises if this stage or a later one could not work with them. It runs
    before the stage is recorded as begun: until then, the user can still change its parts of the recipe."""
    needs: tuple[str, ...] = ()
    """The earlier stages whose outputs this stage reads."""
    beside: tuple[str, ...] = ()
    """Glob patterns of files, such as metrics, that go with the stage when another run takes it over, but have no
    digest."""


async def run_line(
    context: RunContext,
    stages: Sequence[Stage],
    take: Callable[[RunContext, Stage], StageRecord | None] = lambda context, stage: None,
    until: str | None = None,
) -> None:
    """Run every stage that is not done yet. An exception of a stage is raised; the stages before it stay finished.
    `take` takes over a stage from another run before it begins, or returns None. `until` is the last stage to run."""
    require_unchanged(context.recipe, context.state, stages)
    _renew_digests(context, stages)
    context.compute()
    code = code_digest()
    last = len(stages) if until is None else [stage.name for stage in stages].index(until) + 1
    for stage in stages[:last]:
        record = context.state.stages.get(stage.name)
        if record is not None and record.done:
            context.screen.skipped(stage.title, record.seconds)
            continue
        if record is None and (record := await asyncio.to_thread(take, context, stage)) is not None:
            context.state.stages[stage.name] = record
            context.save_state()
            context.journal.event("stage_taken", stage=stage.name, run=record.taken_from, output=record.output)
            continue
        if record is None:
            if stage.require is not None:
                await asyncio.to_thread(stage.require, context)
            record = StageRecord(
                recipe_digest(recipe_of(context.recipe, stage.name), stage.sections), code, started=time.time()
            )
            context.state.stages[stage.name] = record
        if record.code_digest != code:
            # Allowed, since the code may have been fixed so that the stage can go on; but results may now differ from
            # those of one version alone, so the record names both.
            context.screen.say(f"{stage.title}: begun by other code ({record.code_digest}), going on with {code}")
            context.journal.event("code_changed", stage=stage.name, before=record.code_digest, now=code)
            record.code_digest = f"{record.code_digest}+{code}"
        await _run_stage(context, stage, record)


def require_unchanged(recipe: Recipe, state: LineageState, stages: Sequence[Stage]) -> None:
    """Raise LineageError, naming the stage, if the recipe changed in a part that a begun stage depends on: all stages
    of a run come from the same recipe."""
    names = [stage.name for stage in stages]
    if strange := [name for name in state.stages if name not in names]:
        raise LineageError(
            f"this run has begun stage {strange[0]}, which the recipe no longer has; undo the change, or start a "
            "new run with --name"
        )
    for stage in stages:
        record = state.stages.get(stage.name)
        own = recipe_of(recipe, stage.name)
        if record is not None and not is_digest_of(record.recipe_digest, own, stage.sections):
            *others, last = (*stage.sections, "seed")
            raise LineageError(
                f"the recipe changed in {', '.join(others)} or {last} since stage {stage.name} was run; "
                "undo the change, or start a new run with --name"
            )
        began, asked = (set(MODELS).intersection(needs) for needs in (record.inputs if record else (), stage.needs))
        if record is not None and record.inputs and began != asked:
            raise LineageError(
                f"stage {stage.name} was begun with the model of {', '.join(sorted(began))}, and now the recipe's "
                f"stages put {', '.join(sorted(asked))} before it; undo the change, or start a new run with --name"
            )


def _renew_digests(context: RunContext, stages: Sequence[Stage]) -> None:
    """Record today's digests where earlier versions left theirs, so that what those compared and we do not may change
    from now on."""
    begun = [(context.state.stages[stage.name], stage) for stage in stages if stage.name in context.state.stages]
    digests = [recipe_digest(recipe_of(context.recipe, stage.name), stage.sections) for _, stage in begun]
    if digests != [record.recipe_digest for record, _ in begun]:
        for (record, _), digest in zip(begun, digests, strict=True):
            record.recipe_digest = digest
        context.save_state()


def require_stage(name: str | None, stages: Sequence[Stage]) -> None:
    names = [stage.name for stage in stages]
    if name is not None and name not in names:
        raise LineageError(f"there is no stage {name!r}: expected one of {', '.join(names)}")


async def _run_stage(context: RunContext, stage: Stage, record: StageRecord) -> None:
    record.sessions += 1
    record.inputs = {name: context.state.stages[name].output for name in stage.needs}
    context.save_state()
    context.journal.event("stage_started", stage=stage.name, session=record.sessions)
    context.screen.started(stage.title, resumed=record.sessions > 1)
    begun = time.monotonic()
    reason: dict[str, str] = {}
    try:
        record.result = await stage.run(context)
        record.output = await asyncio.to_thread(output_digest, context.paths.root, stage.outputs)
        record.done = True
    except BaseException as error:
        kind = type(error)
        reason = {"reason": str(error) or kind.__name__, "error": f"{kind.__module__}.{kind.__qualname__}"}
        raise
    finally:
        context.screen.ended(done=record.done, seconds=record.seconds + time.monotonic() - begun)
        record.seconds += time.monotonic() - begun
        context.save_state()
        event = "stage_finished" if record.done else "stage_interrupted"
        context.journal.event(event, stage=stage.name, seconds=record.seconds, **reason)
