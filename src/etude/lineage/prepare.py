"""The stages that make data: tasks, corpus with tokenizer, and demonstrations."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from itertools import chain
from typing import Any

from etude.corpus import gather, open_corpus, write_corpus
from etude.harness import format_of, load_profile, profile_of
from etude.lineage.base import network_of
from etude.lineage.contamination import TaskCode, require_separate
from etude.lineage.context import RunContext
from etude.lineage.state import LineageError
from etude.pretrain.long import reaches
from etude.rollout import RolloutSetup, demonstrate, open_setup, oracle
from etude.tasks import Split, gate_tasks, generate_tasks, list_tasks, write_documents
from etude.text import Tokenizer, open_tokenizer

_GATED_TOGETHER = 32
_SAID_WEIGHT = 300


def require_own_format(context: RunContext) -> None:
    """Raise LineageError for a recipe with a published model's chat format or tokenizer if the run trains its own
    tokenizer."""
    harness = context.recipe.harness
    if not context.recipe.own_tokenizer:
        return
    if harness.format not in ("compact", "auto") or harness.tokenizer:
        raise LineageError(
            f"harness.format = {harness.format!r}: a run trains its own tokenizer, which supports only the format "
            "compact; leave harness.format and harness.tokenizer out, or begin with a published model (model.from)"
        )


async def make_tasks(context: RunContext) -> dict[str, Any]:
    """Generate the tasks and gate them: the unchanged repository must fail, the reference must pass tasks.gate_runs
    times."""
    recipe, paths = context.recipe, context.paths
    tasks = await asyncio.to_thread(generate_tasks, recipe.tasks, recipe.seed, paths.tasks)
    await asyncio.to_thread(require_separate, tasks, paths.tasks / "separate")
    discarded: list[str] = []
    reasons: Counter[str] = Counter()
    async with boxes(context) as setup:
        for first in range(0, len(tasks), _GATED_TOGETHER):
            part = tasks[first : first + _GATED_TOGETHER]
            results = await gate_tasks(part, setup.sandboxes, paths.tasks / "gate.jsonl", runs=recipe.tasks.gate_runs)
            if undecided := [(name, result) for name, result in results.items() if not result.decided]:
                name, result = undecided[0]
                why = "; ".join(result.reasons)
                raise LineageError(f"the sandbox failed while {name} was gated ({why}); run the same command again")
            for name, result in results.items():
                if not result.survived:
                    discarded.append(name)
                    reasons[result.outcome.value] += 1
            context.screen.update("tasks", {"step": first + len(part), "total": len(tasks)})
    counts = {split.value: sum(t.split is split and t.id not in discarded for t in tasks) for split in Split}
    return {"tasks": counts, "discarded": discarded, "reasons": dict(reasons), "families": _families(tasks)}


async def make_corpus(context: RunContext) -> dict[str, Any]:
    recipe, paths = context.recipe, context.paths

    def part(number: float, done: int = 0, total: int = 0) -> None:
        context.screen.update("corpus", {"step": number + done / max(1, total), "total": 4})

    part(0)
    if "generated" in recipe.corpus.sources:
        await asyncio.to_thread(write_documents, paths.documents, recipe.corpus.generated_documents, recipe.seed)
    part(1)
    tasks = {split: usable_tasks(context, split) for split in Split}
    held_out, every = [*tasks[Split.DEV], *tasks[Split.TEST]], chain.from_iterable(tasks.values())
    work, processes = paths.corpus / "work", recipe.compute.threads
    gathered = await asyncio.to_thread(
        gather,
        recipe.corpus,
        work,
        paths.documents,
        contamination=await asyncio.to_thread(TaskCode.of, held_out, every if recipe.corpus.code else ()),
        processes=processes,
        progress=partial(part, 1),
    )
    part(2)
    if recipe.own_tokenizer:
        # The harness's own texts must take few tokens, however rare their words are in the corpus.
        said = load_profile(recipe.harness.profile).texts() * _SAID_WEIGHT
        trained = await asyncio.to_thread(Tokenizer.train, chain(said, gathered.texts()), recipe.tokenizer.vocab_size)
        trained.save(paths.tokenizer)
    tokenizer = open_tokenizer(paths.tokenizer)
    part(3)
    manifest = await asyncio.to_thread(
        write_corpus,
        paths.corpus,
        gathered,
        tokenizer,
        recipe.corpus,
        processes=processes,
        progress=partial(part, 3),
    )
    await asyncio.to_thread(shutil.rmtree, work)
    part(4)
    contaminated = gathered.report.of_reason("contaminated")
    return {"vocab_size": tokenizer.vocab_size, "contaminated": contaminated, "corpus": manifest}


def require_long_documents(context: RunContext) -> None:
    """Raise LineageError if the corpus has no documents long enough for the long stage, before hours of pretraining are
    spent."""
    recipe, corpus = context.recipe, open_corpus(context.paths.corpus)
    reach = max(reaches(recipe, network_of(recipe, context.paths)))
    splits = {"train": corpus.train, "held-out": corpus.valid}
    if all(len(shards.reaching(reach)) for shards in splits.values()):
        return
    field, length = "pretrain.length", recipe.pretrain.length
    if not recipe.own_tokenizer or reach != length:
        field, length = "long.phases: length" if recipe.long.phases else "long.length", recipe.long.lengths[-1].length
    longest = " and ".join(
        f"{int(shards.lengths.max(initial=0))} in its {name} split" for name, shards in splits.items()
    )
    raise LineageError(
        f"{field} = {length}: the long stage needs documents of more than {reach + 1} tokens in both splits "
        f"of the corpus, the longest has {longest}; lower {field}, or start a new run (--name) with "
        "longer code (corpus.sources, corpus.folders) or a larger corpus.held_out_share"
    )


async def make_demonstrations(context: RunContext) -> dict[str, Any]:
    """Record how a scripted expert, the oracle, solves train tasks in the harness that a trained agent also uses."""
    recipe, paths = context.recipe, context.paths
    form = format_of(recipe.harness, paths.tokenizer)
    async with boxes(context) as setup:
        made = await demonstrate(
            usable_tasks(context, Split.TRAIN),
            setup,
            form,
            recipe.engine.context,
            paths.demonstrations,
            count=recipe.sft.demonstrations,
            kinds=recipe.sft.kinds,
            seed=recipe.seed,
            expert=oracle(rewrites=recipe.sft.rewrites, tools=profile_of(recipe.harness).tools),
            journal=context.journal,
            progress=lambda done, total: context.screen.update("demonstrations", {"step": done, "total": total}),
        )
    return asdict(made)


def usable_tasks(context: RunContext, split: Split) -> list[Any]:
    """Return the tasks of a split that passed the gate."""
    discarded = set(context.state.stages["tasks"].result["discarded"])
    return [task for task in list_tasks(context.paths.tasks, split) if task.id not in discarded]


def require_held_out(context: RunContext) -> None:
    """Check again that no train task shares a function with a dev or test task: somebody may have added tasks to the
    folder."""
    tasks = [task for split in Split for task in usable_tasks(context, split)]
    require_separate(tasks, context.paths.tasks / "separate")


@asynccontextmanager
async def boxes(context: RunContext) -> AsyncIterator[RolloutSetup]:
    setup, _ = open_setup(context.recipe, context.paths, await context.fleet())
    try:
        yield setup
    finally:
        await setup.sandboxes.close()


def _families(tasks: list[Any]) -> dict[str, list[str]]:
    return {split.value: sorted({t.family for t in tasks if t.split is split}) for split in Split}
